WITH
    given AS MATERIALIZED (
        SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.token') AS token
        FROM json_each(:held)
    ),
    ours AS MATERIALIZED (SELECT id FROM given)
UPDATE job_runs
SET locked_until = strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', :lease))
FROM given
WHERE
    job_runs.id IN (SELECT id FROM ours)
    AND job_runs.id = given.id
    AND job_runs.locked_by = given.token
    AND (job_runs.status = 'running') IS TRUE
RETURNING job_runs.id, job_runs.cancel_requested_at
