SELECT id, locked_by, job_type, attempts, max_attempts, definition_id, forgiven, label
FROM job_runs
WHERE status = 'running' AND locked_until <= strftime('%Y-%m-%d %H:%M:%f000', 'now')
ORDER BY locked_until
LIMIT :limit
