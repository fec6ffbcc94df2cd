SELECT
    count(*) AS waiting,
    count(CASE WHEN run_at <= (SELECT clock_timestamp()) THEN 1 END) AS due,
    0 AS unplaced
FROM
    (
        SELECT run_at
        FROM job_runs
        WHERE status IN ('queued', 'failed') AND concurrency_key IS NULL AND rate_mark IS NULL
        ORDER BY priority DESC, run_at, id
        LIMIT 100
    ) AS first_window
UNION ALL
SELECT
    count(*) AS waiting,
    count(CASE WHEN run_at <= (SELECT clock_timestamp()) THEN 1 END) AS due,
    0 AS unplaced
FROM
    (
        SELECT run_at
        FROM job_runs
        WHERE
            concurrency_key IS NOT NULL
            AND order_mark IS NULL
            AND rate_mark IS NULL
            AND status IN ('queued', 'failed')
        ORDER BY priority DESC, run_at, id
        LIMIT 100
    ) AS first_window
UNION ALL
SELECT 0, 0, count(*)
FROM (SELECT id FROM job_runs WHERE order_mark IN ('new', 'over') ORDER BY id LIMIT 1) AS unplaced
