SELECT *
FROM
    (
        SELECT
            id,
            name,
            job_type,
            schedule,
            timezone,
            +payload AS payload,
            queue,
            priority,
            max_attempts,
            catchup,
            overlap,
            concurrency_key,
            concurrency_limit,
            ping_url,
            strict,
            rate_key,
            label,
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
    name,
    job_type,
    schedule,
    timezone,
    +payload AS payload,
    queue,
    priority,
    max_attempts,
    catchup,
    overlap,
    concurrency_key,
    concurrency_limit,
    ping_url,
    strict,
    rate_key,
    label,
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
    name,
    job_type,
    schedule,
    timezone,
    +payload AS payload,
    queue,
    priority,
    max_attempts,
    catchup,
    overlap,
    concurrency_key,
    concurrency_limit,
    ping_url,
    strict,
    rate_key,
    label,
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
