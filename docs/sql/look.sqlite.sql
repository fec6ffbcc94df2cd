SELECT
    count(*) AS waiting,
    count(CASE WHEN run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') THEN 1 END) AS due
FROM
    (
        SELECT run_at
        FROM job_runs
        WHERE status IN ('queued', 'failed') AND gate IS NULL
        ORDER BY priority DESC, run_at, id
        LIMIT 100
    ) AS first_window
