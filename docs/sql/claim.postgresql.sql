WITH RECURSIVE
    unkeyed_window AS MATERIALIZED (
        SELECT
            id,
            CASE
                WHEN run_at <= clock_timestamp()
                    AND attempts < max_attempts
                    AND job_type = ANY(CAST(:tasks AS text[]))
                    AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
                    AND ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
                    AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
                    AND NOT id = ANY(CAST(:locked AS bigint[])) THEN 1
            END AS claimable
        FROM job_runs
        WHERE status IN ('queued', 'failed') AND concurrency_key IS NULL AND rate_mark IS NULL
        ORDER BY priority DESC, run_at, id
        LIMIT :limit + 100
    ),
    keyed_window AS MATERIALIZED (
        SELECT
            id,
            concurrency_key,
            concurrency_limit,
            priority,
            run_at,
            strict,
            CASE
                WHEN run_at <= clock_timestamp()
                    AND attempts < max_attempts
                    AND job_type = ANY(CAST(:tasks AS text[]))
                    AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
                    AND ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
                    AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
                    AND NOT id = ANY(CAST(:locked AS bigint[])) THEN 1
            END AS claimable
        FROM job_runs
        WHERE
            concurrency_key IS NOT NULL
            AND gate IS NULL
            AND rate_mark IS NULL
            AND status IN ('queued', 'failed')
        ORDER BY priority DESC, run_at, id
        LIMIT :limit + 100
    ),
    suffices AS MATERIALIZED (
        SELECT (
            SELECT count(*) < :limit + 100 OR count(claimable) >= :limit + 20 FROM unkeyed_window
        ) AS unkeyed,
        (SELECT count(*) < :limit + 100 OR count(claimable) >= :limit + 20 FROM keyed_window) AS keyed
    ),
    unkeyed_in_order AS MATERIALIZED (
        SELECT
            id,
            (
                max_attempts - attempts > 1
                AND (attempts = 0 OR (:side_by_side AND COALESCE(error_type, '') <> 'WorkerLost'))
                AND (rate_key IS NULL OR :side_by_side)
            ) AS in_company,
            priority,
            run_at,
            CAST(NULL AS integer) AS share
        FROM job_runs
        WHERE
            status IN ('queued', 'failed')
            AND concurrency_key IS NULL
            AND rate_mark IS NULL
            AND run_at <= clock_timestamp()
            AND attempts < max_attempts
            AND job_type = ANY(CAST(:tasks AS text[]))
            AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
            AND ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
            AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
            AND NOT id = ANY(CAST(:locked AS bigint[]))
            AND (SELECT unkeyed FROM suffices)
        ORDER BY priority DESC, run_at, id
        LIMIT :limit
        FOR NO KEY UPDATE SKIP LOCKED
    ),
    unkeyed_group(job_type, queue, priority) AS (
        SELECT task, CAST('' AS varchar), -2147483648
        FROM unnest(CAST(:tasks AS text[])) AS each_value(task)
        WHERE
            task NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
            AND NOT (SELECT unkeyed FROM suffices)
        UNION ALL
        SELECT grp.job_type, r.queue, r.priority
        FROM unkeyed_group AS grp
        CROSS JOIN
            LATERAL (
                SELECT id, queue, priority
                FROM job_runs
                WHERE
                    finished_at IS NULL
                    AND locked_by IS NULL
                    AND concurrency_key IS NULL
                    AND rate_mark IS NULL
                    AND job_type = grp.job_type
                    AND (queue, priority) >= (grp.queue || '', grp.priority + 1)
                ORDER BY job_type, queue, priority, run_at, id
                LIMIT 1
            ) AS r
    ),
    keyed_group(job_type, queue, priority) AS (
        SELECT task, CAST('' AS varchar), -2147483648
        FROM unnest(CAST(:tasks AS text[])) AS each_value(task)
        WHERE
            task NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
            AND NOT (SELECT keyed FROM suffices)
        UNION ALL
        SELECT grp.job_type, r.queue, r.priority
        FROM keyed_group AS grp
        CROSS JOIN
            LATERAL (
                SELECT id, queue, priority
                FROM job_runs
                WHERE
                    finished_at IS NULL
                    AND locked_by IS NULL
                    AND concurrency_key IS NOT NULL
                    AND gate IS NULL
                    AND rate_mark IS NULL
                    AND job_type = grp.job_type
                    AND (queue, priority) >= (grp.queue || '', grp.priority + 1)
                ORDER BY job_type, queue, priority, run_at, id
                LIMIT 1
            ) AS r
    ),
    next_keyed AS MATERIALIZED (
        SELECT
            *,
            CASE
                WHEN strict AND id > min(CASE WHEN strict THEN id END) OVER of_key THEN 1 = 0
                ELSE (
                    CASE
                        WHEN met.strict THEN met.id = (
                            SELECT first.id
                            FROM job_runs AS first
                            WHERE
                                strict
                                AND finished_at IS NULL
                                AND first.concurrency_key >= met.concurrency_key
                                AND first.concurrency_key <= met.concurrency_key
                            ORDER BY first.concurrency_key, first.id
                            LIMIT 1
                        )
                        ELSE 1 = 1
                    END
                )
            END AS comes_first
        FROM
            (
                SELECT id, concurrency_key, concurrency_limit, priority, run_at, strict
                FROM keyed_window
                WHERE claimable = 1 AND (SELECT keyed FROM suffices)
                UNION ALL
                SELECT *
                FROM
                    (
                        SELECT
                            r.id,
                            r.concurrency_key,
                            r.concurrency_limit,
                            r.priority,
                            r.run_at,
                            r.strict
                        FROM
                            (
                                SELECT *
                                FROM keyed_group
                                WHERE
                                    ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
                                    AND queue NOT IN (
                                        SELECT name FROM job_pauses WHERE kind = 'queue'
                                    )
                            ) AS grp
                        CROSS JOIN
                            LATERAL (
                                SELECT
                                    id, concurrency_key, concurrency_limit, priority, run_at, strict
                                FROM job_runs
                                WHERE
                                    finished_at IS NULL
                                    AND locked_by IS NULL
                                    AND concurrency_key IS NOT NULL
                                    AND gate IS NULL
                                    AND rate_mark IS NULL
                                    AND job_type = grp.job_type
                                    AND queue = grp.queue
                                    AND priority = grp.priority
                                    AND run_at <= (SELECT clock_timestamp())
                                    AND attempts < max_attempts
                                    AND NOT id = ANY(CAST(:locked AS bigint[]))
                                ORDER BY job_type, queue, priority, run_at, id
                                LIMIT :limit + 100
                            ) AS r
                        ORDER BY r.priority DESC, r.run_at, r.id
                        LIMIT :limit + 100
                    ) AS of_groups
            ) AS met WINDOW of_key AS (PARTITION BY concurrency_key)
    ),
    first_of_key AS MATERIALIZED (
        SELECT
            id,
            concurrency_limit AS most,
            (
                CASE
                    WHEN (
                        SELECT id
                        FROM job_runs
                        WHERE concurrency_key = first.concurrency_key AND concurrency_share = 1
                        LIMIT 1
                    ) IS NULL THEN 1
                    ELSE (
                        SELECT COALESCE(min(CASE WHEN share <> place THEN place END), count(*) + 1)
                        FROM
                            (
                                SELECT
                                    concurrency_share AS share,
                                    row_number() OVER (ORDER BY concurrency_share) AS place
                                FROM job_runs
                                WHERE
                                    concurrency_key = first.concurrency_key
                                    AND concurrency_share IS NOT NULL
                            ) AS taken
                    )
                END
            ) AS share
        FROM
            (
                SELECT
                    *,
                    row_number() OVER (
                        PARTITION BY concurrency_key ORDER BY priority DESC, run_at, id
                    ) AS place
                FROM next_keyed
                WHERE comes_first
            ) AS first
        WHERE place = 1
    ),
    key_walk(key, id, following, walked) AS (
        SELECT
            CAST('' AS varchar),
            CAST(NULL AS bigint),
            (
                SELECT concurrency_key
                FROM job_runs
                WHERE
                    concurrency_key IS NOT NULL
                    AND gate IS NULL
                    AND rate_mark IS NULL
                    AND status IN ('queued', 'failed')
                    AND concurrency_key > :after
                ORDER BY concurrency_key
                LIMIT 1
            ),
            0
        WHERE
            (SELECT count(*) FROM next_keyed) >= :limit + 20
            AND (SELECT count(*) FROM first_of_key WHERE share <= most) < :limit
        UNION ALL
        SELECT
            following,
            (
                SELECT
                    CASE
                        WHEN (
                            CASE
                                WHEN (
                                    SELECT id
                                    FROM job_runs
                                    WHERE concurrency_key = following AND concurrency_share = 1
                                    LIMIT 1
                                ) IS NULL THEN 1
                                ELSE (
                                    SELECT
                                        COALESCE(
                                            min(CASE WHEN share <> place THEN place END),
                                            count(*) + 1
                                        )
                                    FROM
                                        (
                                            SELECT
                                                concurrency_share AS share,
                                                row_number() OVER (ORDER BY concurrency_share) AS place
                                            FROM job_runs
                                            WHERE
                                                concurrency_key = following
                                                AND concurrency_share IS NOT NULL
                                        ) AS taken
                                )
                            END
                        ) <= concurrency_limit THEN id
                    END
                FROM job_runs
                WHERE
                    concurrency_key IS NOT NULL
                    AND gate IS NULL
                    AND rate_mark IS NULL
                    AND status IN ('queued', 'failed')
                    AND concurrency_key >= following
                    AND concurrency_key <= following
                    AND run_at <= clock_timestamp()
                    AND attempts < max_attempts
                    AND job_type = ANY(CAST(:tasks AS text[]))
                    AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
                    AND ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
                    AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
                    AND NOT id = ANY(CAST(:locked AS bigint[]))
                ORDER BY concurrency_key, priority DESC, run_at, id
                LIMIT 1
            ),
            (
                SELECT concurrency_key
                FROM job_runs
                WHERE
                    concurrency_key IS NOT NULL
                    AND gate IS NULL
                    AND rate_mark IS NULL
                    AND status IN ('queued', 'failed')
                    AND concurrency_key > following
                ORDER BY concurrency_key
                LIMIT 1
            ),
            walked + CASE WHEN id IS NULL THEN 0 ELSE 1 END
        FROM key_walk
        WHERE following IS NOT NULL AND walked + CASE WHEN id IS NULL THEN 0 ELSE 1 END < :limit
    ),
    found AS MATERIALIZED (
        SELECT id, CAST(NULL AS bigint) AS share
        FROM
            (
                SELECT r.id, r.priority, r.run_at
                FROM
                    (
                        SELECT *
                        FROM unkeyed_group
                        WHERE
                            ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
                            AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
                    ) AS grp
                CROSS JOIN
                    LATERAL (
                        SELECT id, priority, run_at
                        FROM job_runs
                        WHERE
                            finished_at IS NULL
                            AND locked_by IS NULL
                            AND concurrency_key IS NULL
                            AND rate_mark IS NULL
                            AND job_type = grp.job_type
                            AND queue = grp.queue
                            AND priority = grp.priority
                            AND run_at <= (SELECT clock_timestamp())
                            AND attempts < max_attempts
                            AND NOT id = ANY(CAST(:locked AS bigint[]))
                        ORDER BY job_type, queue, priority, run_at, id
                        LIMIT :limit + 20
                    ) AS r
                ORDER BY r.priority DESC, r.run_at, r.id
                LIMIT :limit + 20
            ) AS of_groups
        UNION ALL
        SELECT id, share
        FROM first_of_key
        WHERE share <= most
        UNION
        SELECT
            id,
            (
                CASE
                    WHEN (
                        SELECT id
                        FROM job_runs
                        WHERE concurrency_key = key_walk.key AND concurrency_share = 1
                        LIMIT 1
                    ) IS NULL THEN 1
                    ELSE (
                        SELECT COALESCE(min(CASE WHEN share <> place THEN place END), count(*) + 1)
                        FROM
                            (
                                SELECT
                                    concurrency_share AS share,
                                    row_number() OVER (ORDER BY concurrency_share) AS place
                                FROM job_runs
                                WHERE
                                    concurrency_key = key_walk.key AND concurrency_share IS NOT NULL
                            ) AS taken
                    )
                END
            )
        FROM key_walk
        WHERE
            (
                SELECT
                    (
                        CASE
                            WHEN r.strict THEN r.id = (
                                SELECT first.id
                                FROM job_runs AS first
                                WHERE
                                    strict
                                    AND finished_at IS NULL
                                    AND first.concurrency_key >= r.concurrency_key
                                    AND first.concurrency_key <= r.concurrency_key
                                ORDER BY first.concurrency_key, first.id
                                LIMIT 1
                            )
                            ELSE 1 = 1
                        END
                    )
                FROM job_runs AS r
                WHERE r.id = key_walk.id
            )
    ),
    by_id AS MATERIALIZED (
        SELECT
            r.id,
            (
                max_attempts - attempts > 1
                AND (attempts = 0 OR (:side_by_side AND COALESCE(error_type, '') <> 'WorkerLost'))
                AND (rate_key IS NULL OR :side_by_side)
            ) AS in_company,
            r.priority,
            r.run_at,
            found.share
        FROM found
        CROSS JOIN job_runs AS r
        WHERE
            r.id = ANY(ARRAY(SELECT id FROM found))
            AND r.id = found.id
            AND (
                r.status IN ('queued', 'failed')
                AND r.run_at <= clock_timestamp()
                AND CASE
                    WHEN found.share IS NULL THEN r.concurrency_key IS NULL
                    ELSE found.share <= r.concurrency_limit AND r.gate IS NULL
                END
            ) IS TRUE
        ORDER BY r.priority DESC, r.run_at, r.id
        LIMIT :limit
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ),
    candidate AS MATERIALIZED (
        SELECT
            id, in_company, share, row_number() OVER (ORDER BY priority DESC, run_at, id) AS place
        FROM (SELECT * FROM unkeyed_in_order UNION ALL SELECT * FROM by_id) AS either
        ORDER BY priority DESC, run_at, id
        LIMIT :limit
    ),
    chosen AS MATERIALIZED (
        SELECT id, share, 1 AS takes
        FROM candidate
        WHERE
            CASE
                WHEN (:side_by_side AND NOT :idle)
                    OR (SELECT in_company FROM candidate WHERE place = 1) THEN in_company
                ELSE :idle AND place = 1
            END
        UNION ALL
        SELECT id, NULL, 0
        FROM
            (
                SELECT id
                FROM job_runs
                WHERE
                    id = ANY(
                        ARRAY(
                            SELECT id
                            FROM next_keyed
                            WHERE NOT comes_first
                            UNION
                            SELECT id
                            FROM key_walk
                            WHERE
                                NOT (
                                    SELECT
                                        (
                                            CASE
                                                WHEN r.strict THEN r.id = (
                                                    SELECT first.id
                                                    FROM job_runs AS first
                                                    WHERE
                                                        strict
                                                        AND finished_at IS NULL
                                                        AND first.concurrency_key >= r.concurrency_key
                                                        AND first.concurrency_key <= r.concurrency_key
                                                    ORDER BY first.concurrency_key, first.id
                                                    LIMIT 1
                                                )
                                                ELSE 1 = 1
                                            END
                                        )
                                    FROM job_runs AS r
                                    WHERE r.id = key_walk.id
                                )
                        )
                    )
                    AND (gate IS NULL AND status IN ('queued', 'failed')) IS TRUE
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS parked
    ),
    claimed AS (
        UPDATE job_runs
        SET
            gate = CASE WHEN takes = 0 THEN 'order' END,
            attempts = job_runs.attempts + takes,
            concurrency_share = chosen.share,
            updated_at = clock_timestamp(),
            status = CASE WHEN takes = 1 THEN 'running' ELSE job_runs.status END,
            locked_by = CASE WHEN takes = 1 THEN CAST(:token AS text) ELSE job_runs.locked_by END,
            locked_until = CASE
                WHEN takes = 1 THEN (
                    clock_timestamp() + make_interval(secs => CAST(:lease AS double precision))
                )
                ELSE job_runs.locked_until
            END,
            started_at = CASE WHEN takes = 1 THEN clock_timestamp() ELSE job_runs.started_at END,
            progress = CASE WHEN takes = 1 THEN NULL ELSE job_runs.progress END,
            progress_message = CASE WHEN takes = 1 THEN NULL ELSE job_runs.progress_message END
        FROM chosen
        WHERE job_runs.id = ANY(ARRAY(SELECT id FROM chosen)) AND job_runs.id = chosen.id
        RETURNING
            job_runs.id AS id,
            job_runs.job_type AS job_type,
            CAST(job_runs.payload AS text) AS payload,
            job_runs.attempts AS attempts,
            job_runs.max_attempts AS max_attempts,
            date_part('epoch', job_runs.scheduled_for) AS scheduled_for,
            job_runs.idempotency_key AS idempotency_key,
            job_runs.definition_id AS definition_id,
            job_runs.concurrency_key AS concurrency_key,
            job_runs.error_type AS error_type,
            job_runs.snoozes AS snoozes,
            job_runs.batch_id AS batch_id,
            job_runs.forgiven AS forgiven,
            job_runs.label AS label,
            -CAST(job_runs.priority AS bigint) AS rank,
            date_part('epoch', job_runs.run_at) AS run_at,
            job_runs.id AS ids,
            job_runs.gate AS why
    )
SELECT
    id,
    job_type,
    payload,
    attempts,
    max_attempts,
    scheduled_for,
    idempotency_key,
    definition_id,
    concurrency_key,
    error_type,
    snoozes,
    batch_id,
    forgiven,
    label,
    rank,
    run_at,
    NULL AS ids,
    NULL AS why
FROM claimed
WHERE why IS NULL
UNION ALL
SELECT
    NULL AS id,
    NULL AS job_type,
    NULL AS payload,
    NULL AS attempts,
    NULL AS max_attempts,
    NULL AS scheduled_for,
    NULL AS idempotency_key,
    NULL AS definition_id,
    NULL AS concurrency_key,
    NULL AS error_type,
    NULL AS snoozes,
    NULL AS batch_id,
    NULL AS forgiven,
    NULL AS label,
    NULL AS rank,
    NULL AS run_at,
    string_agg(CAST(id AS text), ','),
    'order'
FROM claimed
WHERE why IS NOT NULL
HAVING count(*) > 0
UNION ALL
SELECT
    NULL AS id,
    NULL AS job_type,
    NULL AS payload,
    NULL AS attempts,
    NULL AS max_attempts,
    NULL AS scheduled_for,
    NULL AS idempotency_key,
    NULL AS definition_id,
    NULL AS concurrency_key,
    NULL AS error_type,
    NULL AS snoozes,
    NULL AS batch_id,
    NULL AS forgiven,
    NULL AS label,
    NULL AS rank,
    NULL AS run_at,
    string_agg(CAST(id AS text), ','),
    'locked'
FROM found
WHERE id NOT IN (SELECT id FROM by_id) AND (SELECT count(*) FROM by_id) < :limit
HAVING count(*) > 0
