WITH
    given AS MATERIALIZED (
        SELECT *
        FROM
            jsonb_to_recordset(CAST(:groups AS jsonb)) AS t(
                rate_key text, job_type text, queue text, priority integer, free integer
            )
    ),
    ready AS MATERIALIZED (
        SELECT
            rate_key,
            (
                SELECT count(*)
                FROM
                    (
                        SELECT
                            id,
                            job_type,
                            queue,
                            run_at,
                            attempts,
                            max_attempts,
                            concurrency_key,
                            concurrency_limit,
                            strict
                        FROM job_runs
                        WHERE
                            rate_key IS NOT NULL
                            AND status IN ('queued', 'failed')
                            AND gate IS NULL
                            AND rate_key = keys.rate_key
                        ORDER BY gate, rate_key, job_type, queue, priority, run_at, id
                        LIMIT 400
                    ) AS r
                WHERE
                    run_at <= clock_timestamp()
                    AND attempts < max_attempts
                    AND job_type = ANY(CAST(:tasks AS text[]))
                    AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
                    AND ((queue = ANY(CAST(:queues AS text[]))) <> :but_queues)
                    AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
                    AND NOT id = ANY(CAST(:blocked AS bigint[]))
                    AND (
                        (
                            r.concurrency_key IS NULL
                            OR (
                                SELECT 1 + count(*)
                                FROM
                                    (
                                        SELECT
                                            concurrency_share - row_number() OVER (
                                                ORDER BY concurrency_share
                                            ) AS free
                                        FROM job_runs
                                        WHERE
                                            concurrency_key = r.concurrency_key
                                            AND concurrency_share IS NOT NULL
                                    ) AS taken
                                WHERE free < 1
                            ) <= r.concurrency_limit
                        )
                        AND (
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
                    )
            ) AS number
        FROM (SELECT DISTINCT rate_key FROM given) AS keys
    ),
    due AS MATERIALIZED (
        SELECT
            r.id,
            given.rate_key,
            given.free,
            CASE
                WHEN (
                    (
                        r.concurrency_key IS NULL
                        OR (
                            SELECT 1 + count(*)
                            FROM
                                (
                                    SELECT
                                        concurrency_share - row_number() OVER (
                                            ORDER BY concurrency_share
                                        ) AS free
                                    FROM job_runs
                                    WHERE
                                        concurrency_key = r.concurrency_key
                                        AND concurrency_share IS NOT NULL
                                ) AS taken
                            WHERE free < 1
                        ) <= r.concurrency_limit
                    )
                    AND (
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
                ) THEN 1
            END AS counts,
            r.priority,
            r.run_at
        FROM given
        CROSS JOIN
            LATERAL (
                SELECT id, priority, run_at, concurrency_key, concurrency_limit, strict
                FROM job_runs
                WHERE
                    rate_key IS NOT NULL
                    AND status IN ('queued', 'failed')
                    AND gate = 'rate'
                    AND rate_key = given.rate_key
                    AND job_type = given.job_type
                    AND queue = given.queue
                    AND priority = given.priority
                    AND run_at <= (SELECT clock_timestamp())
                    AND attempts < max_attempts
                ORDER BY rate_key, job_type, queue, priority, run_at, id
                LIMIT :most
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS r
    ),
    placed AS MATERIALIZED (
        SELECT
            id,
            counts,
            free,
            rate_key,
            count(counts) OVER (PARTITION BY rate_key ORDER BY priority DESC, run_at, id) AS place
        FROM due
    ),
    chosen AS MATERIALIZED (
        SELECT id
        FROM placed
        JOIN ready ON ready.rate_key = placed.rate_key
        WHERE place < free - number OR (place = free - number AND counts = 1)
    )
UPDATE job_runs
SET gate = NULL, rate_key = CASE WHEN job_type = ANY(CAST(:rated AS text[])) THEN rate_key END
WHERE id = ANY(ARRAY(SELECT id FROM chosen))
RETURNING id, (SELECT rate_key FROM due WHERE due.id = job_runs.id) AS key
