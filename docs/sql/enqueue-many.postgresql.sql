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
    CAST(:job_type AS text),
    CAST(:queue AS text),
    CAST(:priority AS integer),
    CAST(:max_attempts AS integer),
    CAST(:strict AS boolean),
    CAST(:concurrency_key AS text),
    CAST(:concurrency_limit AS integer),
    CAST(:rate_key AS text),
    CAST(:label AS text),
    payload,
    CAST(:idempotency_key AS text),
    CAST(:unique_while AS text),
    CAST(:batch_id AS bigint),
    CAST(:definition_id AS bigint)
FROM
    (SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS t(place integer, payload jsonb)) AS r
WHERE true
ORDER BY place
RETURNING id, idempotency_key
