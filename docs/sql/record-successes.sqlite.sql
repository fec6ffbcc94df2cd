WITH
    given AS MATERIALIZED (
        SELECT
            json_extract(value, '$.id') AS id,
            json_extract(value, '$.token') AS token,
            json_extract(value, '$.result') AS result
        FROM json_each(:outcomes)
    ),
    ours AS MATERIALIZED (SELECT id FROM given)
UPDATE job_runs
SET
    status = 'succeeded',
    finished_at = strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    last_error = NULL,
    error_type = NULL,
    fingerprint = NULL,
    locked_by = NULL,
    locked_until = NULL,
    concurrency_share = NULL,
    gate = NULL,
    updated_at = strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    result = CASE
        WHEN given.result GLOB '[-0-9]*'
            AND (given.result GLOB '*[.e]*' OR length(given.result) > 18) THEN CAST(
                given.result AS BLOB
            )
        ELSE given.result
    END
FROM given
WHERE
    job_runs.id IN (SELECT id FROM ours)
    AND job_runs.id = given.id
    AND job_runs.locked_by = given.token
    AND (job_runs.status = 'running') IS TRUE
RETURNING job_runs.id AS ids, job_runs.status AS stored
