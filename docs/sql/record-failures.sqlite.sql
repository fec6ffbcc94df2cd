WITH
    given AS MATERIALIZED (
        SELECT
            json_extract(value, '$.id') AS id,
            json_extract(value, '$.token') AS token,
            json_extract(value, '$.result') AS result,
            json_extract(value, '$.kind') AS kind,
            json_extract(value, '$.error') AS error,
            json_extract(value, '$.error_type') AS error_type,
            json_extract(value, '$.stack') AS stack,
            json_extract(value, '$.fingerprint') AS fingerprint,
            json_extract(value, '$.attempt') AS attempt,
            json_extract(value, '$.reclaimed') AS reclaimed,
            json_extract(value, '$.delay') AS delay,
            json_extract(value, '$.until') AS until
        FROM json_each(:outcomes)
    ),
    ours AS MATERIALIZED (SELECT id FROM given)
INSERT INTO job_failures (run_id, attempt, worker, started_at, failed_at, error_type, error, stack)
SELECT
    given.id,
    given.attempt,
    given.token,
    job_runs.started_at,
    strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    given.error_type,
    given.error,
    given.stack
FROM given
CROSS JOIN job_runs
WHERE
    job_runs.id IN (SELECT id FROM ours)
    AND job_runs.id = given.id
    AND job_runs.locked_by = given.token
    AND (job_runs.status = 'running') IS TRUE
    AND (
        COALESCE(given.reclaimed, 0) = 0
        OR job_runs.locked_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
    )
    AND given.kind IN ('failed', 'dead')
ON CONFLICT DO NOTHING
