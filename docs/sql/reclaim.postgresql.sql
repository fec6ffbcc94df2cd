SELECT id, locked_by, job_type, attempts, max_attempts, definition_id, forgiven, label
FROM job_runs
WHERE status = 'running' AND locked_until <= (SELECT clock_timestamp())
ORDER BY locked_until
LIMIT :limit
FOR NO KEY UPDATE SKIP LOCKED
