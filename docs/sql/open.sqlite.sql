UPDATE job_runs
SET gate = NULL
WHERE
    id IN (
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
                            AND first.concurrency_key >= keys.key
                            AND first.concurrency_key <= keys.key
                        ORDER BY first.concurrency_key, first.id
                        LIMIT 1
                    )
                FROM
                    (
                        SELECT DISTINCT concurrency_key AS key
                        FROM job_runs
                        WHERE id IN (SELECT value FROM json_each(:ids)) AND strict
                    ) AS keys
                WHERE
                    (
                        SELECT id
                        FROM job_runs
                        WHERE
                            gate = 'order'
                            AND concurrency_key >= keys.key
                            AND concurrency_key <= keys.key
                        ORDER BY concurrency_key
                        LIMIT 1
                    ) IS NOT NULL
            )
            AND (gate = 'order') IS TRUE
    )
RETURNING id
