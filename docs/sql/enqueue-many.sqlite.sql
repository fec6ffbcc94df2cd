INSERT INTO
    job_runs (
        gate,
        scheduled_for,
        run_at,
        created_at,
        updated_at,
        job_type,
        queue,
        priority,
        max_attempts,
        strict,
        concurrency_key,
        concurrency_limit,
        rate_key,
        label,
        payload,
        idempotency_key,
        unique_while,
        batch_id,
        definition_id
    )
SELECT
    CASE WHEN :rate_key IS NOT NULL THEN 'rate' END,
    COALESCE(:run_at, strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', :delay))),
    COALESCE(:run_at, strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', :delay))),
    strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    :job_type,
    :queue,
    :priority,
    :max_attempts,
    :strict,
    :concurrency_key,
    :concurrency_limit,
    :rate_key,
    :label,
    payload,
    :idempotency_key,
    :unique_while,
    :batch_id,
    :definition_id
FROM
    (
        SELECT json_extract(value, '$.place') AS place, json_extract(value, '$.payload') AS payload
        FROM json_each(:rows)
    ) AS r
WHERE true
ORDER BY place
RETURNING id, idempotency_key
