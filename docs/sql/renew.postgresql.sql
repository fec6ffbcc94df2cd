WITH
    given AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:held AS jsonb)) AS t(id bigint, token text)
    ),
    ours AS MATERIALIZED (
        SELECT id
        FROM job_runs
        WHERE
            id = ANY(ARRAY(SELECT id FROM given))
            AND (status = 'running') IS TRUE
            AND locked_by = ANY(ARRAY(SELECT DISTINCT token FROM given))
        FOR NO KEY UPDATE SKIP LOCKED
    )
UPDATE job_runs
SET locked_until = (clock_timestamp() + make_interval(secs => CAST(:lease AS double precision)))
FROM given
WHERE
    job_runs.id = ANY(ARRAY(SELECT id FROM ours))
    AND job_runs.id = given.id
    AND job_runs.locked_by = given.token
    AND (job_runs.status = 'running') IS TRUE
RETURNING job_runs.id, job_runs.cancel_requested_at
