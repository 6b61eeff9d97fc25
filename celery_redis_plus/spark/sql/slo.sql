-- By day, queue and task: which share of the messages had its first delivery within 1, 10, 60 and 600 s of waiting, and which
-- completed or failed, also to another queue as a dead letter. The first four are of messages whose first wait is known: its events
-- may be missing, or have expired.
WITH waits AS (
    SELECT
        messages.*,
        CASE
            WHEN messages.attempts = 0 THEN 1e300
            WHEN firsts.wait_s IS NULL AND messages.attempts = 1 THEN messages.wait_s
            ELSE firsts.wait_s
        END AS first_wait_s
    FROM messages
    LEFT JOIN attempts AS firsts ON firsts.queue = messages.queue AND firsts.id = messages.id AND firsts.attempt = 1
)
SELECT
    date, queue, task, count(*) AS messages,
    avg(CASE WHEN first_wait_s <= 1 THEN 1e0 WHEN first_wait_s > 1 THEN 0e0 END) AS delivered_in_1_s,
    avg(CASE WHEN first_wait_s <= 10 THEN 1e0 WHEN first_wait_s > 10 THEN 0e0 END) AS delivered_in_10_s,
    avg(CASE WHEN first_wait_s <= 60 THEN 1e0 WHEN first_wait_s > 60 THEN 0e0 END) AS delivered_in_60_s,
    avg(CASE WHEN first_wait_s <= 600 THEN 1e0 WHEN first_wait_s > 600 THEN 0e0 END) AS delivered_in_600_s,
    avg(CASE WHEN state = 'COMPLETED' THEN 1e0 ELSE 0e0 END) AS completed,
    avg(CASE WHEN has_failed(state, reason) THEN 1e0 ELSE 0e0 END) AS failed
FROM waits
GROUP BY date, queue, task
