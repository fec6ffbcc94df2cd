UPDATE job_runs
SET
    status = 'dead',
    finished_at = strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    last_error = 'no attempt is left: max_attempts is ' || max_attempts || COALESCE(
        '. The last error: ' || last_error, ''
    ),
    error_type = COALESCE(error_type, 'NoAttemptLeft'),
    fingerprint = NULL,
    locked_by = NULL,
    locked_until = NULL,
    concurrency_share = NULL,
    gate = NULL,
    updated_at = strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE
    id IN (
        SELECT id
        FROM job_runs
        WHERE
            (
                (attempts >= max_attempts AND status IN ('queued', 'failed'))
                OR (snoozes >= 100 AND finished_at IS NULL)
            )
            AND attempts >= max_attempts
            AND status IN ('queued', 'failed')
        LIMIT :limit
    )
RETURNING id, job_type, attempts, last_error, error_type, definition_id, label
