INSERT INTO job_ticks (worker, host, pid, listening, resident, queues, version, started_at, seen_at)
VALUES
    (
        :worker,
        :host,
        :pid,
        :listening,
        :resident,
        CAST(:queues AS jsonb),
        :version,
        (SELECT clock_timestamp()),
        (SELECT clock_timestamp())
    )
RETURNING
    id,
    started_at,
    (SELECT min(started_at) FROM job_ticks) < (
        (SELECT clock_timestamp()) + make_interval(secs => CAST(:age AS double precision))
    ) AS has_old,
    (SELECT max(started_at) FROM job_ticks WHERE started_at < (SELECT clock_timestamp())) AS last,
    (
        SELECT sum(pruned)
        FROM (SELECT pruned FROM job_ticks ORDER BY started_at DESC LIMIT 5) AS latest
    ) AS pruned,
    EXISTS (
        SELECT 1
        FROM job_runs
        WHERE status = 'running' AND locked_until <= (SELECT clock_timestamp())
    ) AS expired,
    EXISTS (
        SELECT 1
        FROM job_runs
        WHERE
            (
                (attempts >= max_attempts AND status IN ('queued', 'failed'))
                OR (snoozes >= 100 AND finished_at IS NULL)
            )
            AND attempts >= max_attempts
            AND status IN ('queued', 'failed')
    ) AS spent,
    EXISTS (SELECT 1 FROM job_runs WHERE gate IN ('keys', 'order')) AS parked,
    EXISTS (SELECT 1 FROM job_batches WHERE finished_at IS NULL) AS open_batches,
    EXISTS (
        SELECT 1
        FROM job_definitions
        WHERE
            origin = 'code'
            AND undeclared_since IS NULL
            AND (app IS NULL OR app = :app)
            AND name NOT IN (SELECT name FROM unnest(CAST(:declared AS text[])) AS each_value(name))
    ) AS undeclared
