WITH RECURSIVE
    hop(rate_key, job_type, queue, priority, run_at, number) AS (
        SELECT rate_key, job_type, queue, priority, run_at, 1
        FROM job_runs
        WHERE
            id = ANY(
                ARRAY(
                    SELECT id
                    FROM job_runs
                    WHERE
                        rate_key IS NOT NULL
                        AND status IN ('queued', 'failed')
                        AND gate = 'rate'
                        AND (rate_key, job_type, queue, priority) >= (
                            :rate_key, :job_type, :queue, CAST(:priority AS integer) + 1
                        )
                    ORDER BY rate_key, job_type, queue, priority, run_at, id
                    LIMIT 1
                )
            )
        UNION ALL
        SELECT r.rate_key, r.job_type, r.queue, r.priority, r.run_at, hop.number + 1
        FROM hop
        CROSS JOIN
            LATERAL (
                SELECT id, rate_key, job_type, queue, priority, run_at
                FROM job_runs
                WHERE
                    hop.number < 500
                    AND id = ANY(
                        ARRAY(
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
                    )
                LIMIT 1
            ) AS r
    )
SELECT
    rate_key,
    job_type,
    queue,
    priority,
    CASE
        WHEN run_at <= (SELECT clock_timestamp())
            AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
            AND ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
            AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue') THEN 1
        ELSE 0
    END AS open,
    (SELECT tat FROM job_rates WHERE key = hop.rate_key) AS tat,
    (SELECT period FROM job_rates WHERE key = hop.rate_key) AS period,
    (SELECT last_at FROM job_rates WHERE key = hop.rate_key) AS last_at,
    (SELECT clock_timestamp()) AS now
FROM hop
