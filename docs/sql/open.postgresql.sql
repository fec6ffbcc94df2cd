WITH RECURSIVE
    given AS MATERIALIZED (
        SELECT DISTINCT concurrency_key AS key
        FROM job_runs
        WHERE id = ANY(CAST(:ids AS bigint[])) AND concurrency_key IS NOT NULL
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
        CROSS JOIN
            LATERAL (
                SELECT id, job_type, queue, concurrency_limit
                FROM job_runs
                WHERE
                    gate IN ('keys', 'order')
                    AND gate = 'keys'
                    AND concurrency_key = grp.key
                    AND (job_type, queue) > (grp.job_type, grp.queue)
                ORDER BY gate, concurrency_key, job_type, queue, priority DESC, run_at, id
                LIMIT 1
            ) AS r
    ),
    next AS MATERIALIZED (
        SELECT id
        FROM
            (
                SELECT r.id
                FROM grp
                CROSS JOIN
                    LATERAL (
                        SELECT id, queue
                        FROM job_runs
                        WHERE
                            gate IN ('keys', 'order')
                            AND gate = 'keys'
                            AND concurrency_key = grp.key
                            AND job_type = grp.job_type
                            AND queue = grp.queue
                        ORDER BY gate, concurrency_key, job_type, queue, priority DESC, run_at, id
                        LIMIT GREATEST(grp.free, 0)
                        FOR NO KEY UPDATE SKIP LOCKED
                    ) AS r
            ) AS of_groups
        UNION ALL
        SELECT id
        FROM
            (
                SELECT id
                FROM job_runs
                WHERE
                    id = ANY(
                        ARRAY(
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
                    )
                    AND (gate = 'order') IS TRUE
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS in_order
    )
UPDATE job_runs
SET gate = NULL
WHERE id = ANY(ARRAY(SELECT id FROM next))
RETURNING id
