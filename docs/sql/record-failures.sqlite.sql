INSERT INTO job_failures (run_id, attempt, worker, started_at, failed_at, error_type, error, stack)
SELECT
    o.id,
    o.attempt,
    o.token,
    r.started_at,
    strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    o.error_type,
    o.error,
    o.stack
FROM
    (
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
    ) AS o
JOIN job_runs r ON r.id = o.id
WHERE o.kind IN ('failed', 'dead') AND o.id IN (SELECT value FROM json_each(:recorded))
ON CONFLICT DO NOTHING
