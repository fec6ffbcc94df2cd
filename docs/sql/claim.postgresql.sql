WITH RECURSIVE
    look AS MATERIALIZED (
        SELECT
            id,
            concurrency_key AS key,
            COALESCE(concurrency_limit, 0) AS most,
            strict,
            priority,
            run_at,
            CASE
                WHEN run_at <= clock_timestamp()
                    AND attempts < max_attempts
                    AND job_type = ANY(CAST(:tasks AS text[]))
                    AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
                    AND ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
                    AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
                    AND NOT id = ANY(CAST(:blocked AS bigint[])) THEN 1
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
        FROM unnest(CAST(:tasks AS text[])) AS each_value(task)
        WHERE
            task NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
            AND NOT (SELECT yes FROM enough)
        UNION ALL
        SELECT grp.job_type, r.queue, r.priority
        FROM grp
        CROSS JOIN
            LATERAL (
                SELECT id, queue, priority
                FROM job_runs
                WHERE
                    finished_at IS NULL
                    AND locked_by IS NULL
                    AND gate IS NULL
                    AND job_type = grp.job_type
                    AND (queue, priority) >= (grp.queue || '', grp.priority + 1)
                ORDER BY job_type, queue, priority, run_at, id
                LIMIT 1
            ) AS r
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
                    ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
                    AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
            ) AS grp
        CROSS JOIN
            LATERAL (
                SELECT id, concurrency_key, concurrency_limit, strict, priority, run_at
                FROM job_runs
                WHERE
                    finished_at IS NULL
                    AND locked_by IS NULL
                    AND gate IS NULL
                    AND job_type = grp.job_type
                    AND queue = grp.queue
                    AND priority = grp.priority
                    AND run_at <= (SELECT clock_timestamp())
                    AND attempts < max_attempts
                    AND NOT id = ANY(CAST(:blocked AS bigint[]))
                ORDER BY job_type, queue, priority, run_at, id
                LIMIT :looked + 20
            ) AS r
        ORDER BY r.priority DESC, r.run_at, r.id
        LIMIT :looked + 20
    ),
    locked AS MATERIALIZED (
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
                    status IN ('queued', 'failed')
                    AND gate IS NULL
                    AND run_at <= clock_timestamp()
                    AND attempts < max_attempts
                    AND job_type = ANY(CAST(:tasks AS text[]))
                    AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
                    AND ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
                    AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
                    AND NOT id = ANY(CAST(:blocked AS bigint[]))
                    AND (SELECT yes FROM enough)
                ORDER BY priority DESC, run_at, id
                LIMIT :looked
                FOR NO KEY UPDATE SKIP LOCKED
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
                    id = ANY(ARRAY(SELECT id FROM of_groups))
                    AND (
                        status IN ('queued', 'failed')
                        AND gate IS NULL
                        AND run_at <= clock_timestamp()
                    ) IS TRUE
                FOR NO KEY UPDATE SKIP LOCKED
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
                        FROM
                            (
                                SELECT *, 1 AS locked
                                FROM locked
                                UNION ALL
                                SELECT id, key, most, strict, priority, run_at, NULL, 0
                                FROM look
                                WHERE
                                    claimable = 1
                                    AND key IS NOT NULL
                                    AND (SELECT yes FROM enough)
                                    AND id NOT IN (SELECT id FROM locked)
                                    AND (
                                        (SELECT count(*) FROM locked) < :looked
                                        OR (-CAST(priority AS bigint), run_at, id) < (
                                            SELECT -CAST(priority AS bigint), run_at, id
                                            FROM locked
                                            ORDER BY priority, run_at DESC, id DESC
                                            LIMIT 1
                                        )
                                    )
                                UNION ALL
                                SELECT *, NULL, 0
                                FROM of_groups
                                WHERE id NOT IN (SELECT id FROM locked)
                            ) AS run
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
    parked AS (
        UPDATE job_runs
        SET gate = parks.gate
        FROM parks
        WHERE job_runs.id = ANY(ARRAY(SELECT id FROM parks)) AND job_runs.id = parks.id
        RETURNING job_runs.id
    ),
    claimed AS (
        UPDATE job_runs
        SET
            status = 'running',
            attempts = job_runs.attempts + 1,
            locked_by = :token,
            locked_until = (
                clock_timestamp() + make_interval(secs => CAST(:lease AS double precision))
            ),
            started_at = clock_timestamp(),
            updated_at = clock_timestamp(),
            progress = NULL,
            progress_message = NULL,
            concurrency_share = takes.share
        FROM takes
        WHERE job_runs.id = ANY(ARRAY(SELECT id FROM takes)) AND job_runs.id = takes.id
        RETURNING
            job_runs.id,
            job_runs.job_type,
            CAST(job_runs.payload AS text) AS payload,
            job_runs.attempts,
            job_runs.max_attempts,
            date_part('epoch', job_runs.scheduled_for) AS scheduled_for,
            job_runs.idempotency_key,
            job_runs.definition_id,
            job_runs.concurrency_key,
            job_runs.error_type,
            job_runs.snoozes,
            job_runs.batch_id,
            job_runs.forgiven,
            job_runs.label,
            -CAST(job_runs.priority AS bigint) AS rank,
            date_part('epoch', job_runs.run_at) AS run_at
    )
SELECT *, NULL AS parked, NULL AS blocked
FROM claimed
UNION ALL
SELECT
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    parked,
    blocked
FROM
    (
        SELECT (SELECT string_agg(CAST(id AS text), ',') FROM parked) AS parked,
        (
            SELECT string_agg(CAST(id AS text), ',')
            FROM placed
            WHERE
                locked = 0
                AND (
                    key IN (
                        SELECT key FROM placed WHERE locked = 1 AND NOT behind AND NOT share <= most
                    )
                    OR (SELECT count(*) FROM locked) < :limit
                )
        ) AS blocked
    ) AS others
WHERE parked IS NOT NULL OR blocked IS NOT NULL
