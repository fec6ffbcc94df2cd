WITH RECURSIVE
    hop(rate_key, job_type, queue, priority, run_at, number) AS (
        SELECT rate_key, job_type, queue, priority, run_at, 1
        FROM job_runs
        WHERE
            id IN (
                SELECT id
                FROM job_runs
                WHERE
                    rate_key IS NOT NULL
                    AND status IN ('queued', 'failed')
                    AND gate = 'rate'
                    AND (rate_key, job_type, queue, priority) >= (
                        :rate_key, :job_type, :queue, :priority + 1
                    )
                ORDER BY rate_key, job_type, queue, priority, run_at, id
                LIMIT 1
            )
        UNION ALL
        SELECT r.rate_key, r.job_type, r.queue, r.priority, r.run_at, hop.number + 1
        FROM hop
        CROSS JOIN job_runs r
        WHERE
            r.id IN (
                SELECT id
                FROM job_runs
                WHERE
                    hop.number < 500
                    AND id IN (
                        SELECT id
                        FROM job_runs
                        WHERE
                            rate_key IS NOT NULL
                            AND status IN ('queued', 'failed')
                            AND gate = 'rate'
                            AND (rate_key, job_type, queue, priority) >= (
                                hop.rate_key || '',
                                hop.job_type || '',
                                hop.queue || '',
                                hop.priority + 1
                            )
                        ORDER BY rate_key, job_type, queue, priority, run_at, id
                        LIMIT 1
                    )
                LIMIT 1
            )
    )
SELECT
    rate_key,
    job_type,
    queue,
    priority,
    CASE
        WHEN run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
            AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
            AND ((queue IN (SELECT value FROM json_each(:queues))) <> :but_queues)
            AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue') THEN 1
        ELSE 0
    END AS open,
    (SELECT tat FROM job_rates WHERE key = hop.rate_key) AS tat,
    (SELECT period FROM job_rates WHERE key = hop.rate_key) AS period,
    (SELECT last_at FROM job_rates WHERE key = hop.rate_key) AS last_at,
    strftime('%Y-%m-%d %H:%M:%f000', 'now') AS now
FROM hop
