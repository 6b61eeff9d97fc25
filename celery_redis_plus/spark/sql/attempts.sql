-- Each delivery of each message, and what ended it. A delivery that has not ended has no `ended_at`.
WITH steps AS (
    SELECT
        queue, id, epoch, n, event, ts, worker,
        lag(ts) OVER message AS ready_at,
        lead(ts) OVER message AS next_at,
        lead(event) OVER message AS next_event,
        lead(reason) OVER message AS next_reason,
        lead(error) OVER message AS next_error,
        -- A task that was acked early may fail behind its ack.
        lead(event, 2) OVER message = 'failed' AND lead(event) OVER message = 'acked' AS fails_late,
        lead(ts, 2) OVER message AS late_at,
        lead(reason, 2) OVER message AS late_reason,
        lead(error, 2) OVER message AS late_error
    FROM events
    WINDOW message AS (PARTITION BY queue, id ORDER BY epoch, n)
), ends AS (
    SELECT
        *,
        CASE WHEN fails_late THEN late_at ELSE next_at END AS ended_at,
        CASE WHEN fails_late THEN 'failed' ELSE next_event END AS ended_by,
        CASE WHEN fails_late THEN late_reason ELSE next_reason END AS reason,
        CASE WHEN fails_late THEN late_error ELSE next_error END AS error
    FROM steps
)
SELECT
    ends.queue, ends.id, messages.task_id, messages.task,
    row_number() OVER (PARTITION BY ends.queue, ends.id ORDER BY ends.epoch, ends.n) AS attempt,
    ends.worker, ends.ts AS claimed_at, ends.ended_at, ends.ended_by, ends.reason, ends.error,
    seconds_between(ends.ready_at, ends.ts) AS wait_s,
    seconds_between(ends.ts, ends.ended_at) AS run_s
FROM ends
LEFT JOIN messages ON messages.queue = ends.queue AND messages.id = ends.id
WHERE ends.event = 'claimed'
