SELECT *
FROM
    (
        SELECT
            id,
            job_type,
            queue,
            priority,
            max_attempts,
            strict,
            concurrency_key,
            concurrency_limit,
            rate_key,
            label,
            name,
            schedule,
            timezone,
            CAST(payload AS text) AS payload,
            catchup,
            overlap,
            ping_url,
            origin,
            paused_at,
            next_run_at,
            considered_until,
            undeclared_since,
            app,
            (SELECT clock_timestamp()) AS now
        FROM job_definitions
        WHERE
            paused_at IS NULL
            AND next_run_at IS NOT NULL
            AND next_run_at <= (SELECT clock_timestamp())
            AND (
                (origin = 'code' AND name = ANY(CAST(:declared AS text[])))
                OR (origin = 'database' AND job_type = ANY(CAST(:tasks AS text[])))
            )
            AND +id > :after
        ORDER BY +id
        LIMIT :chunk
    ) AS due
UNION ALL
SELECT
    id,
    job_type,
    queue,
    priority,
    max_attempts,
    strict,
    concurrency_key,
    concurrency_limit,
    rate_key,
    label,
    name,
    schedule,
    timezone,
    CAST(payload AS text) AS payload,
    catchup,
    overlap,
    ping_url,
    origin,
    paused_at,
    next_run_at,
    considered_until,
    undeclared_since,
    app,
    (SELECT clock_timestamp()) AS now
FROM job_definitions
WHERE
    :all
    AND origin = 'code'
    AND name = ANY(CAST(:declared AS text[]))
    AND (paused_at IS NOT NULL OR next_run_at IS NULL OR next_run_at > (SELECT clock_timestamp()))
UNION ALL
SELECT
    id,
    job_type,
    queue,
    priority,
    max_attempts,
    strict,
    concurrency_key,
    concurrency_limit,
    rate_key,
    label,
    name,
    schedule,
    timezone,
    CAST(payload AS text) AS payload,
    catchup,
    overlap,
    ping_url,
    origin,
    paused_at,
    next_run_at,
    considered_until,
    undeclared_since,
    app,
    (SELECT clock_timestamp()) AS now
FROM job_definitions
WHERE
    :all
    AND origin = 'database'
    AND job_type = ANY(CAST(:tasks AS text[]))
    AND paused_at IS NULL
    AND next_run_at IS NOT NULL
    AND next_run_at > (
        (SELECT clock_timestamp()) + make_interval(secs => CAST(3162240000 AS double precision))
    )
