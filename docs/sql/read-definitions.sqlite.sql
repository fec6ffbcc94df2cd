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
            +payload AS payload,
            catchup,
            overlap,
            ping_url,
            origin,
            paused_at,
            next_run_at,
            considered_until,
            undeclared_since,
            app,
            strftime('%Y-%m-%d %H:%M:%f000', 'now') AS now
        FROM job_definitions
        WHERE
            paused_at IS NULL
            AND next_run_at IS NOT NULL
            AND next_run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
            AND (
                (origin = 'code' AND name IN (SELECT value FROM json_each(:declared)))
                OR (origin = 'database' AND job_type IN (SELECT value FROM json_each(:tasks)))
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
    +payload AS payload,
    catchup,
    overlap,
    ping_url,
    origin,
    paused_at,
    next_run_at,
    considered_until,
    undeclared_since,
    app,
    strftime('%Y-%m-%d %H:%M:%f000', 'now') AS now
FROM job_definitions
WHERE
    :all
    AND origin = 'code'
    AND name IN (SELECT value FROM json_each(:declared))
    AND (
        paused_at IS NOT NULL
        OR next_run_at IS NULL
        OR next_run_at > strftime('%Y-%m-%d %H:%M:%f000', 'now')
    )
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
    +payload AS payload,
    catchup,
    overlap,
    ping_url,
    origin,
    paused_at,
    next_run_at,
    considered_until,
    undeclared_since,
    app,
    strftime('%Y-%m-%d %H:%M:%f000', 'now') AS now
FROM job_definitions
WHERE
    :all
    AND origin = 'database'
    AND job_type IN (SELECT value FROM json_each(:tasks))
    AND paused_at IS NULL
    AND next_run_at IS NOT NULL
    AND next_run_at > strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', 3162240000))
