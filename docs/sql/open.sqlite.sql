WITH RECURSIVE
    given AS MATERIALIZED (
        SELECT DISTINCT concurrency_key AS key
        FROM job_runs
        WHERE id IN (SELECT value FROM json_each(:ids)) AND concurrency_key IS NOT NULL
    ),
    grp(key, job_type, queue, free) AS (
        SELECT key, CAST('' AS varchar), CAST('' AS varchar), CAST(0 AS bigint)
        FROM given
        UNION ALL
        SELECT
            grp.key,
            r.job_type,
            r.queue,
            r.concurrency_limit - (
                SELECT count(*)
                FROM job_runs AS taken
                WHERE
                    taken.concurrency_key = grp.key
                    AND taken.concurrency_share <= r.concurrency_limit
            )
        FROM grp
        CROSS JOIN job_runs r
        WHERE
            r.id IN (
                SELECT id
                FROM job_runs
                WHERE
                    gate IN ('keys', 'order')
                    AND gate = 'keys'
                    AND concurrency_key = grp.key
                    AND (job_type, queue) >= (grp.job_type || '', grp.queue || char(1))
                ORDER BY gate, concurrency_key, job_type, queue, priority DESC, run_at, id
                LIMIT 1
            )
    ),
    next AS MATERIALIZED (
        SELECT id
        FROM
            (
                SELECT id
                FROM
                    (
                        SELECT
                            r.id,
                            grp.free,
                            row_number() OVER (
                                PARTITION BY grp.key, r.job_type, r.queue
                                ORDER BY r.priority DESC, r.run_at, r.id
                            ) AS place
                        FROM grp
                        CROSS JOIN job_runs r
                        WHERE
                            r.id IN (
                                SELECT id
                                FROM job_runs
                                WHERE
                                    gate IN ('keys', 'order')
                                    AND gate = 'keys'
                                    AND concurrency_key = grp.key
                                    AND job_type = grp.job_type
                                    AND queue = grp.queue
                                ORDER BY
                                    gate,
                                    concurrency_key,
                                    job_type,
                                    queue,
                                    priority DESC,
                                    run_at,
                                    id
                                LIMIT (SELECT max(free) FROM grp)
                            )
                    ) AS numbered
                WHERE place <= free
            ) AS of_groups
        UNION ALL
        SELECT id
        FROM
            (
                SELECT id
                FROM job_runs
                WHERE
                    id IN (
                        SELECT
                            (
                                SELECT first.id
                                FROM job_runs AS first
                                WHERE
                                    strict
                                    AND finished_at IS NULL
                                    AND first.concurrency_key >= given.key
                                    AND first.concurrency_key <= given.key
                                ORDER BY first.concurrency_key, first.id
                                LIMIT 1
                            )
                        FROM given
                    )
                    AND (gate = 'order') IS TRUE
            ) AS in_order
    )
UPDATE job_runs
SET gate = NULL
WHERE id IN (SELECT id FROM next)
RETURNING id
