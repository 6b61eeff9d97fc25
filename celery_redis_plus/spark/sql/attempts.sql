-- Each delivery of each message, and what ended it. A delivery that has not ended has no `ended_at`.
WITH steps AS (
    SELECT
        queue, id, epoch, n, event, ts, worker,
        lag(ts) OVER message AS ready_at,
        lead(ts) OVER message AS ended_at,
        lead(event) OVER message AS ended_by,
        lead(reason) OVER message AS reason,
        lead(error) OVER message AS error
    FROM events
    WINDOW message AS (PARTITION BY queue, id ORDER BY epoch, n)
)
SELECT
    steps.queue, steps.id, messages.task_id, messages.task,
    row_number() OVER (PARTITION BY steps.queue, steps.id ORDER BY steps.epoch, steps.n) AS attempt,
    steps.worker, steps.ts AS claimed_at, steps.ended_at, steps.ended_by, steps.reason, steps.error,
    seconds_between(steps.ready_at, steps.ts) AS wait_s,
    seconds_between(steps.ts, steps.ended_at) AS run_s
FROM steps
LEFT JOIN messages ON messages.queue = steps.queue AND messages.id = steps.id
WHERE steps.event = 'claimed'
