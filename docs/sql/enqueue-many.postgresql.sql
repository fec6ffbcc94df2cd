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
        concurrency_limit,
        unique_while,
        batch_id,
        payload
    )
SELECT
    CASE WHEN CAST(:strict AS boolean) THEN 'new' END,
    CASE WHEN NULL IS NOT NULL THEN 'waits' END,
    COALESCE(
        CAST(:run_at AS timestamptz),
        ((SELECT clock_timestamp()) + make_interval(secs => CAST(:delay AS double precision)))
    ),
    COALESCE(
        CAST(:run_at AS timestamptz),
        ((SELECT clock_timestamp()) + make_interval(secs => CAST(:delay AS double precision)))
    ),
    (SELECT clock_timestamp()),
    (SELECT clock_timestamp()),
    CAST(:queue AS text),
    CAST(:priority AS integer),
    CAST(:strict AS boolean),
    CAST(:job_type AS text),
    CAST(:max_attempts AS integer),
    CAST(:concurrency_limit AS integer),
    CAST(:unique_while AS text),
    CAST(:batch_id AS bigint),
    payload
FROM
    (SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS t(place integer, payload jsonb)) AS r
WHERE true
ORDER BY place
RETURNING id, idempotency_key
