-- By hour of publishing in UTC, queue and task: messages, failures, and percentiles of wait and run, in seconds. As in `deaths`, dead
-- letters that went to another queue have failed.
SELECT
    hour_of(published_at) AS hour, queue, task, count(*) AS messages,
    sum(CASE WHEN has_failed(state, reason) THEN 1 ELSE 0 END) AS failed,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY wait_s) AS wait_p50_s,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY wait_s) AS wait_p95_s,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY wait_s) AS wait_p99_s,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY run_s) AS run_p50_s,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY run_s) AS run_p95_s,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY run_s) AS run_p99_s
FROM messages
GROUP BY hour_of(published_at), queue, task
