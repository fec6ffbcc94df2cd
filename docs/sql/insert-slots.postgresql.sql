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
    CAST(s.at AS timestamptz),
    CAST(s.at AS timestamptz),
    (SELECT clock_timestamp()),
    (SELECT clock_timestamp()),
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
        ) THEN (SELECT clock_timestamp())
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
        WHEN s.skipped > 0 THEN CAST(s.note AS jsonb)
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
        ) THEN CAST('{"skipped": 1}' AS jsonb)
    END
FROM
    (
        SELECT *
        FROM
            jsonb_to_recordset(CAST(:slots AS jsonb)) AS t(
                at text, reason text, kind text, note text, definition_id bigint, skipped integer
            )
    ) AS s
JOIN job_definitions d ON d.id = s.definition_id
WHERE d.id = ANY(CAST(:ids AS bigint[]))
ORDER BY s.at
ON CONFLICT DO NOTHING
RETURNING
    id, definition_id, job_type, scheduled_for, status, last_error, CAST(result AS text) AS result
