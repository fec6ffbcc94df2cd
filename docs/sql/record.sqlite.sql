WITH
    given AS MATERIALIZED (
        SELECT
            json_extract(value, '$.id') AS id,
            json_extract(value, '$.token') AS token,
            json_extract(value, '$.result') AS result,
            json_extract(value, '$.kind') AS kind,
            json_extract(value, '$.error') AS error,
            json_extract(value, '$.error_type') AS error_type,
            json_extract(value, '$.stack') AS stack,
            json_extract(value, '$.fingerprint') AS fingerprint,
            json_extract(value, '$.attempt') AS attempt,
            json_extract(value, '$.reclaimed') AS reclaimed,
            json_extract(value, '$.delay') AS delay,
            json_extract(value, '$.until') AS until
        FROM json_each(:outcomes)
    ),
    ours AS MATERIALIZED (SELECT id FROM given)
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
            OR job_runs.cancel_requested_at IS NOT NULL THEN strftime('%Y-%m-%d %H:%M:%f000', 'now')
        ELSE job_runs.finished_at
    END,
    last_error = CASE WHEN given.kind <> 'released' THEN given.error ELSE job_runs.last_error END,
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
    updated_at = strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    failed_at = CASE
        WHEN given.kind IN ('failed', 'dead') THEN strftime('%Y-%m-%d %H:%M:%f000', 'now')
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
    snoozes = CASE WHEN given.kind = 'snoozed' THEN job_runs.snoozes + 1 ELSE job_runs.snoozes END,
    run_at = CASE
        WHEN given.kind = 'failed' THEN strftime(
            '%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', given.delay)
        )
        WHEN given.kind = 'snoozed' THEN max(
            COALESCE(
                given.until,
                strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', given.delay))
            ),
            strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', given.delay))
        )
        ELSE job_runs.run_at
    END,
    result = CASE
        WHEN given.result GLOB '[-0-9]*'
            AND (given.result GLOB '*[.e]*' OR length(given.result) > 18) THEN CAST(
                given.result AS BLOB
            )
        ELSE given.result
    END
FROM given
WHERE
    job_runs.id IN (SELECT id FROM ours)
    AND job_runs.id = given.id
    AND job_runs.locked_by = given.token
    AND (job_runs.status = 'running') IS TRUE
    AND (
        COALESCE(given.reclaimed, 0) = 0
        OR job_runs.locked_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
    )
RETURNING job_runs.id AS ids, job_runs.status AS stored
