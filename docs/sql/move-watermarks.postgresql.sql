UPDATE job_definitions
SET
    next_run_at = CAST(p.following AS timestamptz),
    considered_until = COALESCE(CAST(p.considered AS timestamptz), considered_until),
    undeclared_since = NULL,
    updated_at = (SELECT clock_timestamp())
FROM
    (
        SELECT *
        FROM
            jsonb_to_recordset(CAST(:plans AS jsonb)) AS t(
                definition_id bigint, expected text, following text, considered text
            )
    ) AS p
WHERE
    job_definitions.id = p.definition_id
    AND job_definitions.paused_at IS NULL
    AND (
        CASE
            WHEN job_definitions.next_run_at >= '0002-01-01'
                AND job_definitions.next_run_at < '10000-01-01' THEN job_definitions.next_run_at
        END
    ) IS NOT DISTINCT FROM CAST(p.expected AS timestamptz)
    AND job_definitions.id = ANY(
        ARRAY(
            SELECT id
            FROM job_definitions
            WHERE
                id = ANY(
                    ARRAY(
                        SELECT definition_id
                        FROM
                            (
                                SELECT *
                                FROM
                                    jsonb_to_recordset(CAST(:plans AS jsonb)) AS t(
                                        definition_id bigint
                                    )
                            ) AS p
                    )
                )
            FOR NO KEY UPDATE SKIP LOCKED
        )
    )
RETURNING job_definitions.id AS id
