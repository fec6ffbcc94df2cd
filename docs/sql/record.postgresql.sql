WITH
    given AS MATERIALIZED (
        SELECT *
        FROM
            jsonb_to_recordset(CAST(:outcomes AS jsonb)) AS t(
                id bigint,
                token text,
                result text,
                kind text,
                error text,
                error_type text,
                stack text,
                fingerprint text,
                attempt integer,
                reclaimed integer,
                delay double precision,
                until timestamptz
            )
    ),
    ours AS MATERIALIZED (
        SELECT id
        FROM job_runs
        WHERE
            id = ANY(ARRAY(SELECT id FROM given))
            AND (status = 'running') IS TRUE
            AND locked_by = ANY(ARRAY(SELECT DISTINCT token FROM given))
        FOR NO KEY UPDATE SKIP LOCKED
    ),
    recorded AS (
        UPDATE job_runs
        SET
            status = CASE
                WHEN job_runs.cancel_requested_at IS NOT NULL
                    AND NOT given.kind IN ('succeeded', 'dead', 'cancelled', 'skipped') THEN 'cancelled'
                WHEN NOT given.kind IN ('released', 'snoozed') THEN given.kind
                WHEN job_runs.attempts > 1 THEN 'failed'
                ELSE 'queued'
            END,
            finished_at = CASE
                WHEN given.kind IN ('succeeded', 'dead', 'cancelled', 'skipped')
                    OR job_runs.cancel_requested_at IS NOT NULL THEN clock_timestamp()
                ELSE job_runs.finished_at
            END,
            last_error = CASE
                WHEN given.kind <> 'released' THEN given.error
                ELSE job_runs.last_error
            END,
            error_type = CASE
                WHEN given.kind <> 'released' THEN given.error_type
                ELSE job_runs.error_type
            END,
            fingerprint = CASE
                WHEN given.kind <> 'released' THEN given.fingerprint
                ELSE job_runs.fingerprint
            END,
            locked_by = NULL,
            locked_until = NULL,
            concurrency_share = NULL,
            gate = CASE
                WHEN NOT (
                    given.kind IN ('succeeded', 'dead', 'cancelled', 'skipped')
                    OR job_runs.cancel_requested_at IS NOT NULL
                ) THEN CASE
                    WHEN job_runs.rate_key IS NOT NULL THEN 'rate'
                END
            END,
            updated_at = clock_timestamp(),
            failed_at = CASE
                WHEN given.kind IN ('failed', 'dead') THEN clock_timestamp()
                ELSE job_runs.failed_at
            END,
            attempts = CASE
                WHEN given.kind IN ('released', 'snoozed') THEN job_runs.attempts - 1
                ELSE job_runs.attempts
            END,
            forgiven = CASE
                WHEN given.kind IN ('released', 'snoozed')
                    AND job_runs.forgiven = job_runs.attempts THEN job_runs.forgiven - 1
                ELSE job_runs.forgiven
            END,
            max_attempts = CASE
                WHEN given.kind IN ('released', 'snoozed')
                    AND job_runs.forgiven = job_runs.attempts THEN job_runs.max_attempts - 1
                ELSE job_runs.max_attempts
            END,
            snoozes = CASE
                WHEN given.kind = 'snoozed' THEN job_runs.snoozes + 1
                ELSE job_runs.snoozes
            END,
            run_at = CASE
                WHEN given.kind = 'failed' THEN (
                    clock_timestamp() + make_interval(secs => CAST(given.delay AS double precision))
                )
                WHEN given.kind = 'snoozed' THEN GREATEST(
                    given.until,
                    (
                        clock_timestamp() + make_interval(
                            secs => CAST(given.delay AS double precision)
                        )
                    )
                )
                ELSE job_runs.run_at
            END,
            result = CAST(given.result AS jsonb)
        FROM given
        WHERE
            job_runs.id = ANY(ARRAY(SELECT id FROM ours))
            AND job_runs.id = given.id
            AND job_runs.locked_by = given.token
            AND (job_runs.status = 'running') IS TRUE
            AND (COALESCE(given.reclaimed, 0) = 0 OR job_runs.locked_until <= clock_timestamp())
        RETURNING job_runs.status, job_runs.started_at, given.*
    ),
    failures AS (
        INSERT INTO
            job_failures (run_id, attempt, worker, started_at, failed_at, error_type, error, stack)
        SELECT id, attempt, token, started_at, clock_timestamp(), error_type, error, stack
        FROM recorded
        WHERE kind IN ('failed', 'dead')
        ON CONFLICT DO NOTHING
    )
SELECT string_agg(CAST(id AS text), ',') AS ids, status AS stored
FROM recorded
GROUP BY status
