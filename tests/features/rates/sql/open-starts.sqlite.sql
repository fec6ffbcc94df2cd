WITH
    given AS MATERIALIZED (
        SELECT
            json_extract(value, '$.rate_key') AS rate_key,
            json_extract(value, '$.job_type') AS job_type,
            json_extract(value, '$.queue') AS queue,
            json_extract(value, '$.priority') AS priority,
            json_extract(value, '$.free') AS free
        FROM json_each(:groups)
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
                    run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
                    AND attempts < max_attempts
                    AND job_type IN (SELECT value FROM json_each(:tasks))
                    AND job_type NOT IN (SELECT name FROM job_pauses WHERE kind = 'task')
                    AND ((queue IN (SELECT value FROM json_each(:queues))) <> :but_queues)
                    AND queue NOT IN (SELECT name FROM job_pauses WHERE kind = 'queue')
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
        CROSS JOIN job_runs r
        WHERE
            r.id IN (
                SELECT id
                FROM job_runs
                WHERE
                    rate_key IS NOT NULL
                    AND status IN ('queued', 'failed')
                    AND gate = 'rate'
                    AND rate_key = given.rate_key
                    AND job_type = given.job_type
                    AND queue = given.queue
                    AND priority = given.priority
                    AND run_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
                    AND attempts < max_attempts
                ORDER BY rate_key, job_type, queue, priority, run_at, id
                LIMIT :most
            )
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
SET
    gate = NULL,
    rate_key = CASE WHEN job_type IN (SELECT value FROM json_each(:rated)) THEN rate_key END
WHERE id IN (SELECT id FROM chosen)
RETURNING id, (SELECT rate_key FROM due WHERE due.id = job_runs.id) AS key
