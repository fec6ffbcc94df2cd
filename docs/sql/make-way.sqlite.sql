WITH
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
                SELECT DISTINCT key
                FROM
                    (
                        SELECT concurrency_key AS key
                        FROM job_runs
                        WHERE order_mark IN ('new', 'over')
                        ORDER BY id
                        LIMIT 500
                    ) AS found
            ) AS keys
    )
UPDATE job_runs
SET order_mark = 'waits'
WHERE
    id IN (SELECT id FROM job_runs WHERE id IN (SELECT holder FROM queue WHERE first < holder))
    AND (finished_at IS NULL AND order_mark IS NULL) IS TRUE
RETURNING id
