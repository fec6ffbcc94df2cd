WITH RECURSIVE
    hop(key, number) AS (
        SELECT
            (
                SELECT concurrency_key
                FROM job_runs
                WHERE gate = 'order' AND concurrency_key > CAST(:after AS text)
                ORDER BY concurrency_key
                LIMIT 1
            ),
            1
        UNION ALL
        SELECT
            (
                SELECT concurrency_key
                FROM job_runs
                WHERE gate = 'order' AND concurrency_key > hop.key
                ORDER BY concurrency_key
                LIMIT 1
            ),
            number + 1
        FROM hop
        WHERE key IS NOT NULL AND number < 500
    )
SELECT key
FROM hop
WHERE key IS NOT NULL
