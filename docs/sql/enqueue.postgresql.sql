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
    CASE WHEN CAST(:rate_key AS text) IS NOT NULL THEN 'rate' END,
    due,
    due,
    now,
    now,
    CAST(:job_type AS text),
    CAST(:queue AS text),
    CAST(:priority AS integer),
    CAST(:max_attempts AS integer),
    CAST(:strict AS boolean),
    CAST(:concurrency_key AS text),
    CAST(:concurrency_limit AS integer),
    CAST(:rate_key AS text),
    CAST(:label AS text),
    CAST(:payload AS jsonb),
    CAST(:idempotency_key AS text),
    CAST(:unique_while AS text),
    CAST(:batch_id AS bigint),
    CAST(:definition_id AS bigint)
FROM
    (
        SELECT COALESCE(
            CAST(:run_at AS timestamptz),
            ((SELECT clock_timestamp()) + make_interval(secs => CAST(:delay AS double precision)))
        ) AS due,
        (SELECT clock_timestamp()) AS now
    ) AS times
WHERE true
RETURNING
    id,
    run_at,
    created_at,
    (
        SELECT pg_notify('flask_cronjobs', '') IS NOT NULL
        FROM
            (
                SELECT 1
                FROM job_ticks
                WHERE
                    started_at > (SELECT clock_timestamp()) - interval '3 minutes'
                    AND listening
                    AND finished_at IS NULL
                LIMIT 1
            ) AS listener
    ) AS woke
