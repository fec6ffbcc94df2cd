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
    )
INSERT INTO job_failures (run_id, attempt, worker, started_at, failed_at, error_type, error, stack)
SELECT
    given.id,
    given.attempt,
    given.token,
    job_runs.started_at,
    (SELECT clock_timestamp()),
    given.error_type,
    given.error,
    given.stack
FROM given
CROSS JOIN job_runs
WHERE
    job_runs.id = ANY(ARRAY(SELECT id FROM ours))
    AND job_runs.id = given.id
    AND job_runs.locked_by = given.token
    AND (job_runs.status = 'running') IS TRUE
    AND (COALESCE(given.reclaimed, 0) = 0 OR job_runs.locked_until <= clock_timestamp())
    AND given.kind IN ('failed', 'dead')
ON CONFLICT DO NOTHING
