WITH RECURSIVE
    look AS MATERIALIZED (
        SELECT
            id,
            concurrency_key AS key,
            COALESCE(concurrency_limit, 0) AS most,
            strict,
            priority,
            run_at,
            (
                max_attempts - attempts > 1
                AND (attempts = 0 OR (:side_by_side AND COALESCE(error_type, '') <> 'WorkerLost'))
                AND (rate_key IS NULL OR :side_by_side)
            ) AS together,
            CASE
                WHEN run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
                    AND attempts < max_attempts
                    AND job_type IN (SELECT value FROM json_each(:tasks))
                    AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
                    AND ((queue IN (SELECT value FROM json_each(:queues))) <> :but_queues)
                    AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue') THEN 1
            END AS claimable
        FROM job_runs
        WHERE status IN ('queued', 'failed') AND gate IS NULL
        ORDER BY priority DESC, run_at, id
        LIMIT :looked + 100
    ),
    enough AS MATERIALIZED (
        SELECT count(*) < :looked + 100 OR count(claimable) >= :looked + 20 AS yes FROM look
    ),
    grp(job_type, queue, priority) AS (
        SELECT task, CAST('' AS varchar), -2147483648
        FROM (SELECT value AS task FROM json_each(:tasks))
        WHERE
            task NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
            AND NOT (SELECT yes FROM enough)
        UNION ALL
        SELECT grp.job_type, r.queue, r.priority
        FROM grp
        CROSS JOIN job_runs r
        WHERE
            r.id IN (
                SELECT id
                FROM job_runs
                WHERE
                    finished_at IS NULL
                    AND locked_by IS NULL
                    AND gate IS NULL
                    AND job_type = grp.job_type
                    AND (queue, priority) >= (
                        grp.queue || CASE WHEN grp.priority + 0 = grp.priority THEN '' ELSE ' ' END,
                        grp.priority + 1
                    )
                ORDER BY job_type, queue, priority, run_at, id
                LIMIT 1
            )
    ),
    of_groups(id, key, most, strict, priority, run_at) AS MATERIALIZED (
        SELECT
            r.id,
            r.concurrency_key,
            COALESCE(r.concurrency_limit, 0),
            r.strict,
            r.priority,
            r.run_at
        FROM
            (
                SELECT *
                FROM grp
                WHERE
                    ((queue IN (SELECT value FROM json_each(:queues))) <> :but_queues)
                    AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
            ) AS grp
        CROSS JOIN job_runs r
        WHERE
            r.id IN (
                SELECT id
                FROM job_runs
                WHERE
                    finished_at IS NULL
                    AND locked_by IS NULL
                    AND gate IS NULL
                    AND job_type = grp.job_type
                    AND queue = grp.queue
                    AND priority = grp.priority
                    AND run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
                    AND attempts < max_attempts
                ORDER BY job_type, queue, priority, run_at, id
                LIMIT :looked + 20
            )
        ORDER BY r.priority DESC, r.run_at, r.id
        LIMIT :looked + 20
    ),
    locked AS MATERIALIZED (
        SELECT *
        FROM
            (
                SELECT id, key, most, strict, priority, run_at, together
                FROM look
                WHERE claimable = 1 AND (SELECT yes FROM enough)
            ) AS front
        UNION ALL
        SELECT *
        FROM
            (
                SELECT
                    id,
                    concurrency_key AS key,
                    COALESCE(concurrency_limit, 0) AS most,
                    strict,
                    priority,
                    run_at,
                    (
                        max_attempts - attempts > 1
                        AND (
                            attempts = 0
                            OR (:side_by_side AND COALESCE(error_type, '') <> 'WorkerLost')
                        )
                        AND (rate_key IS NULL OR :side_by_side)
                    ) AS together
                FROM job_runs
                WHERE
                    id IN (SELECT id FROM of_groups)
                    AND (
                        status IN ('queued', 'failed')
                        AND gate IS NULL
                        AND run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
                    ) IS TRUE
            ) AS others
    ),
    placed AS MATERIALIZED (
        SELECT
            *,
            CASE
                WHEN key IS NULL THEN 0
                WHEN behind OR place > most THEN most + 1
                ELSE (
                    SELECT run.place + count(*)
                    FROM
                        (
                            SELECT
                                concurrency_share - row_number() OVER (ORDER BY concurrency_share) AS free
                            FROM job_runs
                            WHERE concurrency_key = run.key AND concurrency_share IS NOT NULL
                        ) AS taken
                    WHERE free < run.place
                )
            END AS share
        FROM
            (
                SELECT
                    *,
                    row_number() OVER (PARTITION BY key, behind ORDER BY priority DESC, run_at, id) AS place
                FROM
                    (
                        SELECT
                            *,
                            NOT (
                                CASE
                                    WHEN run.strict THEN run.id = (
                                        SELECT first.id
                                        FROM job_runs AS first
                                        WHERE
                                            strict
                                            AND finished_at IS NULL
                                            AND first.concurrency_key >= run.key
                                            AND first.concurrency_key <= run.key
                                        ORDER BY first.concurrency_key, first.id
                                        LIMIT 1
                                    )
                                    ELSE 1 = 1
                                END
                            ) AS behind
                        FROM (SELECT *, 1 AS locked FROM locked) AS run
                    ) AS run
            ) AS run
    ),
    candidate AS MATERIALIZED (
        SELECT id, share, together, row_number() OVER (ORDER BY priority DESC, run_at, id) AS nth
        FROM placed
        WHERE locked = 1 AND share <= most
        ORDER BY priority DESC, run_at, id
        LIMIT :limit
    ),
    takes AS MATERIALIZED (
        SELECT id, NULLIF(share, 0) AS share
        FROM candidate
        WHERE
            CASE
                WHEN (:side_by_side AND NOT :idle)
                    OR (SELECT together FROM candidate WHERE nth = 1) THEN together
                ELSE :idle AND nth = 1
            END
    ),
    parks AS MATERIALIZED (
        SELECT id, CASE WHEN behind THEN 'order' ELSE 'keys' END AS gate
        FROM placed
        WHERE
            locked = 1
            AND NOT share <= most
            AND (
                behind
                OR key NOT IN (
                    SELECT key
                    FROM placed
                    WHERE share <= most AND key IS NOT NULL AND id NOT IN (SELECT id FROM takes)
                )
            )
    ),
    chosen AS MATERIALIZED (
        SELECT id, share, NULL AS gate FROM takes UNION ALL SELECT id, NULL, gate FROM parks
    )
UPDATE job_runs
SET
    gate = chosen.gate,
    concurrency_share = chosen.share,
    status = CASE WHEN chosen.gate IS NULL THEN 'running' ELSE job_runs.status END,
    attempts = CASE WHEN chosen.gate IS NULL THEN job_runs.attempts + 1 ELSE job_runs.attempts END,
    locked_by = CASE WHEN chosen.gate IS NULL THEN :token ELSE job_runs.locked_by END,
    locked_until = CASE
        WHEN chosen.gate IS NULL THEN strftime(
            '%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', :lease)
        )
        ELSE job_runs.locked_until
    END,
    started_at = CASE
        WHEN chosen.gate IS NULL THEN strftime('%Y-%m-%d %H:%M:%f000', 'now')
        ELSE job_runs.started_at
    END,
    updated_at = CASE
        WHEN chosen.gate IS NULL THEN strftime('%Y-%m-%d %H:%M:%f000', 'now')
        ELSE job_runs.updated_at
    END,
    progress = CASE WHEN chosen.gate IS NULL THEN NULL ELSE job_runs.progress END,
    progress_message = CASE WHEN chosen.gate IS NULL THEN NULL ELSE job_runs.progress_message END
FROM chosen
WHERE job_runs.id = chosen.id
RETURNING
    job_runs.id,
    job_runs.job_type,
    +job_runs.payload AS payload,
    job_runs.attempts,
    job_runs.max_attempts,
    job_runs.scheduled_for,
    job_runs.idempotency_key,
    job_runs.definition_id,
    job_runs.concurrency_key,
    job_runs.error_type,
    job_runs.snoozes,
    job_runs.batch_id,
    job_runs.forgiven,
    job_runs.label,
    -CAST(job_runs.priority AS bigint) AS rank,
    CAST(job_runs.run_at AS text) AS run_at,
    CASE WHEN job_runs.status <> 'running' THEN job_runs.id END AS parked,
    NULL AS blocked
