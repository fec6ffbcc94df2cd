INSERT INTO job_ticks (worker, host, pid, listening, resident, queues, version, started_at, seen_at)
VALUES
    (
        :worker,
        :host,
        :pid,
        :listening,
        :resident,
        :queues,
        :version,
        strftime('%Y-%m-%d %H:%M:%f000', 'now'),
        strftime('%Y-%m-%d %H:%M:%f000', 'now')
    )
RETURNING
    id,
    started_at,
    (SELECT min(started_at) FROM job_ticks) < strftime(
        '%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', :age)
    ) AS has_old,
    (
        SELECT max(started_at)
        FROM job_ticks
        WHERE started_at < strftime('%Y-%m-%d %H:%M:%f000', 'now')
    ) AS last,
    (
        SELECT sum(pruned)
        FROM (SELECT pruned FROM job_ticks ORDER BY started_at DESC LIMIT 5) AS latest
    ) AS pruned,
    EXISTS (
        SELECT 1
        FROM job_runs
        WHERE status = 'running' AND locked_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
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
            AND name NOT IN (SELECT name FROM (SELECT value AS name FROM json_each(:declared)))
    ) AS undeclared
