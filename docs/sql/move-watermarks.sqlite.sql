UPDATE job_definitions
SET
    next_run_at = p.following,
    considered_until = COALESCE(p.considered, considered_until),
    undeclared_since = NULL,
    updated_at = strftime('%Y-%m-%d %H:%M:%f000', 'now')
FROM
    (
        SELECT
            json_extract(value, '$.definition_id') AS definition_id,
            json_extract(value, '$.expected') AS expected,
            json_extract(value, '$.following') AS following,
            json_extract(value, '$.considered') AS considered
        FROM json_each(:plans)
    ) AS p
WHERE
    job_definitions.id = p.definition_id
    AND job_definitions.paused_at IS NULL
    AND (
        CASE
            WHEN job_definitions.next_run_at >= '0002-01-01' THEN strftime(
                '%Y-%m-%d %H:%M:%f', job_definitions.next_run_at
            )
        END
    ) IS strftime('%Y-%m-%d %H:%M:%f', p.expected)
RETURNING job_definitions.id AS id
