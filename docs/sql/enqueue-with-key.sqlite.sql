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
    due,
    due,
    now,
    now,
    :job_type,
    :queue,
    :priority,
    :max_attempts,
    :strict,
    :concurrency_key,
    :concurrency_limit,
    :rate_key,
    :label,
    :payload,
    :idempotency_key,
    :unique_while,
    :batch_id,
    :definition_id
FROM
    (
        SELECT COALESCE(
            :run_at, strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', :delay))
        ) AS due,
        strftime('%Y-%m-%d %H:%M:%f000', 'now') AS now
    ) AS times
WHERE true
ON CONFLICT (idempotency_key)
WHERE
    idempotency_key IS NOT NULL
    AND (
        unique_while IS NULL
        OR (finished_at IS NULL AND (unique_while = 'pending' OR started_at IS NULL))
    ) DO NOTHING
RETURNING id, run_at, created_at
