WITH
    given AS MATERIALIZED (
        SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.token') AS token
        FROM json_each(:held)
    )
SELECT r.id, r.cancel_requested_at
FROM job_runs r
JOIN given ON r.id = given.id
WHERE
    r.id IN (SELECT id FROM given) AND r.locked_by = given.token AND (r.status = 'running') IS TRUE
