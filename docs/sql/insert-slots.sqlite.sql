INSERT INTO
    job_runs (
        gate,
        scheduled_for,
        run_at,
        created_at,
        updated_at,
        payload,
        job_type,
        queue,
        priority,
        max_attempts,
        strict,
        concurrency_key,
        concurrency_limit,
        rate_key,
        label,
        definition_id,
        status,
        finished_at,
        last_error,
        error_type,
        result
    )
SELECT
    CASE
        WHEN NOT (
            s.skipped > 0
            OR (
                d.overlap = 'skip'
                AND (
                    SELECT live.id
                    FROM job_runs live
                    WHERE
                        live.definition_id = d.id
                        AND live.status IN ('queued', 'failed', 'running')
                        AND (live.status <> 'failed' OR live.failed_at < live.started_at)
                    LIMIT 1
                ) IS NOT NULL
            )
        ) THEN CASE
            WHEN d.rate_key IS NOT NULL THEN 'rate'
        END
    END,
    s.at,
    s.at,
    strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    d.payload,
    d.job_type,
    d.queue,
    d.priority,
    d.max_attempts,
    d.strict,
    COALESCE(d.concurrency_key, CASE WHEN d.overlap = 'skip' THEN 'definition:' || d.name END),
    CASE WHEN d.overlap = 'skip' THEN 1 ELSE d.concurrency_limit END,
    d.rate_key,
    d.label,
    d.id,
    CASE
        WHEN (
            s.skipped > 0
            OR (
                d.overlap = 'skip'
                AND (
                    SELECT live.id
                    FROM job_runs live
                    WHERE
                        live.definition_id = d.id
                        AND live.status IN ('queued', 'failed', 'running')
                        AND (live.status <> 'failed' OR live.failed_at < live.started_at)
                    LIMIT 1
                ) IS NOT NULL
            )
        ) THEN 'skipped'
        ELSE 'queued'
    END,
    CASE
        WHEN (
            s.skipped > 0
            OR (
                d.overlap = 'skip'
                AND (
                    SELECT live.id
                    FROM job_runs live
                    WHERE
                        live.definition_id = d.id
                        AND live.status IN ('queued', 'failed', 'running')
                        AND (live.status <> 'failed' OR live.failed_at < live.started_at)
                    LIMIT 1
                ) IS NOT NULL
            )
        ) THEN strftime('%Y-%m-%d %H:%M:%f000', 'now')
    END,
    CASE
        WHEN s.skipped > 0 THEN s.reason
        WHEN (
            d.overlap = 'skip'
            AND (
                SELECT live.id
                FROM job_runs live
                WHERE
                    live.definition_id = d.id
                    AND live.status IN ('queued', 'failed', 'running')
                    AND (live.status <> 'failed' OR live.failed_at < live.started_at)
                LIMIT 1
            ) IS NOT NULL
        ) THEN 'overlap: an earlier run was not finished'
    END,
    CASE
        WHEN s.skipped > 0 THEN s.kind
        WHEN (
            d.overlap = 'skip'
            AND (
                SELECT live.id
                FROM job_runs live
                WHERE
                    live.definition_id = d.id
                    AND live.status IN ('queued', 'failed', 'running')
                    AND (live.status <> 'failed' OR live.failed_at < live.started_at)
                LIMIT 1
            ) IS NOT NULL
        ) THEN 'Overlap'
    END,
    CASE
        WHEN s.skipped > 0 THEN CASE
            WHEN s.note GLOB '[-0-9]*'
                AND (s.note GLOB '*[.e]*' OR length(s.note) > 18) THEN CAST(s.note AS BLOB)
            ELSE s.note
        END
        WHEN (
            d.overlap = 'skip'
            AND (
                SELECT live.id
                FROM job_runs live
                WHERE
                    live.definition_id = d.id
                    AND live.status IN ('queued', 'failed', 'running')
                    AND (live.status <> 'failed' OR live.failed_at < live.started_at)
                LIMIT 1
            ) IS NOT NULL
        ) THEN CASE
            WHEN '{"skipped": 1}' GLOB '[-0-9]*'
                AND ('{"skipped": 1}' GLOB '*[.e]*' OR length('{"skipped": 1}') > 18) THEN CAST(
                    '{"skipped": 1}' AS BLOB
                )
            ELSE '{"skipped": 1}'
        END
    END
FROM
    (
        SELECT
            json_extract(value, '$.at') AS at,
            json_extract(value, '$.reason') AS reason,
            json_extract(value, '$.kind') AS kind,
            json_extract(value, '$.note') AS note,
            json_extract(value, '$.definition_id') AS definition_id,
            json_extract(value, '$.skipped') AS skipped
        FROM json_each(:slots)
    ) AS s
JOIN job_definitions d ON d.id = s.definition_id
WHERE d.id IN (SELECT value FROM json_each(:ids))
ORDER BY s.at
ON CONFLICT DO NOTHING
RETURNING id, definition_id, job_type, scheduled_for, status, last_error, +result AS result
