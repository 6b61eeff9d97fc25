-- Versions of workers compared, by task. The version is what stands behind the last `-` of a worker's name, as of
-- `celery worker -n shop-1.4.2@%h`; workers without one are left out.
WITH versions AS (
    SELECT *, regexp_extract(worker, '-([^-@]+)@', 1) AS version
    FROM attempts
)
SELECT
    task, version, min(claimed_at) AS first_at, max(claimed_at) AS last_at, count(*) AS attempts,
    avg(CASE WHEN attempt_failed(ended_by, reason) THEN 1e0 ELSE 0e0 END) AS failed,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY run_s) AS run_p50_s,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY run_s) AS run_p95_s
FROM versions
WHERE version <> ''
GROUP BY task, version
