WITH
    marked AS MATERIALIZED (
        SELECT id, concurrency_key AS key, order_mark
        FROM job_runs
        WHERE order_mark IN ('new', 'over')
        ORDER BY id
        LIMIT 500
        FOR NO KEY UPDATE SKIP LOCKED
    ),
    queue AS MATERIALIZED (
        SELECT
            keys.*,
            (
                SELECT id
                FROM job_runs
                WHERE
                    strict
                    AND finished_at IS NULL
                    AND concurrency_key >= keys.key
                    AND concurrency_key <= keys.key
                ORDER BY concurrency_key, id
                LIMIT 1
            ) AS first,
            (
                SELECT id
                FROM job_runs
                WHERE
                    strict
                    AND order_mark IS NULL
                    AND status IN ('queued', 'failed', 'running')
                    AND concurrency_key >= keys.key
                    AND concurrency_key <= keys.key
                ORDER BY concurrency_key
                LIMIT 1
            ) AS holder
        FROM
            (
                SELECT key, min(CASE WHEN order_mark = 'over' THEN id END) AS mark
                FROM marked
                GROUP BY key
            ) AS keys
    ),
    next AS MATERIALIZED (
        SELECT id, concurrency_key AS key
        FROM job_runs
        WHERE
            id = ANY(ARRAY(SELECT first FROM queue WHERE holder IS NULL))
            AND (finished_at IS NULL AND order_mark IS NOT NULL) IS TRUE
        FOR NO KEY UPDATE SKIP LOCKED
    ),
    given AS MATERIALIZED (
        SELECT
            marked.id AS id,
            CASE
                WHEN marked.order_mark = 'over' OR marked.id = next.id THEN NULL
                WHEN marked.id = queue.first THEN 'new'
                ELSE 'waits'
            END AS order_mark
        FROM marked
        JOIN queue ON queue.key = marked.key
        LEFT JOIN next ON next.key = marked.key
        WHERE
            marked.order_mark = 'new'
            OR marked.id > queue.mark
            OR queue.first IS NULL
            OR queue.first = queue.holder
            OR next.id IS NOT NULL
        UNION ALL
        SELECT id, CAST(NULL AS text)
        FROM next
        WHERE id NOT IN (SELECT id FROM marked)
        LIMIT 1000
    )
UPDATE job_runs
SET order_mark = given.order_mark
FROM given
WHERE job_runs.id = ANY(ARRAY(SELECT id FROM given)) AND job_runs.id = given.id
RETURNING job_runs.id AS id, job_runs.order_mark AS order_mark
