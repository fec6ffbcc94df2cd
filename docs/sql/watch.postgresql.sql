WITH
    given AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:held AS jsonb)) AS t(id bigint, token text)
    )
SELECT r.id, r.cancel_requested_at
FROM job_runs r
JOIN given ON r.id = given.id
WHERE
    r.id = ANY(ARRAY(SELECT id FROM given))
    AND r.locked_by = given.token
    AND (r.status = 'running') IS TRUE
