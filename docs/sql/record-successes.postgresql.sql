WITH
    given AS MATERIALIZED (
        SELECT *
        FROM jsonb_to_recordset(CAST(:outcomes AS jsonb)) AS t(id bigint, token text, result text)
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
            status = 'succeeded',
            finished_at = clock_timestamp(),
            last_error = NULL,
            error_type = NULL,
            fingerprint = NULL,
            locked_by = NULL,
            locked_until = NULL,
            concurrency_share = NULL,
            gate = NULL,
            updated_at = clock_timestamp(),
            result = CAST(given.result AS jsonb)
        FROM given
        WHERE
            job_runs.id = ANY(ARRAY(SELECT id FROM ours))
            AND job_runs.id = given.id
            AND job_runs.locked_by = given.token
            AND (job_runs.status = 'running') IS TRUE
        RETURNING job_runs.status, job_runs.id
    )
SELECT string_agg(CAST(id AS text), ',') AS ids, status AS stored
FROM recorded
GROUP BY status
