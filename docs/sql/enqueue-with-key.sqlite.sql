INSERT INTO
    job_runs (
        order_mark,
        rate_mark,
        scheduled_for,
        run_at,
        created_at,
        updated_at,
        queue,
        priority,
        strict,
        job_type,
        max_attempts,
        payload,
        concurrency_key,
        concurrency_limit,
        rate_key,
        idempotency_key,
        label,
        unique_while,
        batch_id
    )
SELECT
    CASE WHEN :strict THEN 'new' END,
    CASE WHEN :rate_key IS NOT NULL THEN 'waits' END,
    due,
    due,
    now,
    now,
    :queue,
    :priority,
    :strict,
    :job_type,
    :max_attempts,
    :payload,
    :concurrency_key,
    :concurrency_limit,
    :rate_key,
    :idempotency_key,
    :label,
    :unique_while,
    :batch_id
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
