WITH RECURSIVE
    hop(gate, key, number) AS (
        SELECT
            gate,
            (
                SELECT concurrency_key
                FROM job_runs
                WHERE
                    gate IN ('keys', 'order')
                    AND gate = gates.gate
                    AND concurrency_key > CAST(:after AS text)
                ORDER BY gate, concurrency_key
                LIMIT 1
            ),
            1
        FROM (SELECT 'keys' AS gate UNION ALL SELECT 'order' AS gate) AS gates
        UNION ALL
        SELECT
            gate,
            (
                SELECT concurrency_key
                FROM job_runs
                WHERE gate IN ('keys', 'order') AND gate = hop.gate AND concurrency_key > hop.key
                ORDER BY gate, concurrency_key
                LIMIT 1
            ),
            number + 1
        FROM hop
        WHERE key IS NOT NULL AND number < 500
    )
SELECT key, min(key) FILTER (WHERE number = 500) OVER () AS last
FROM hop
WHERE key IS NOT NULL
