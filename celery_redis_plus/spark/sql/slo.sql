-- By day, queue and task: which share of the messages had its first delivery within 1, 10, 60 and 600 s of waiting, and which
-- completed or failed, also to another queue as a dead letter.
WITH waits AS (
    SELECT messages.*, firsts.wait_s AS first_wait_s
    FROM messages
    LEFT JOIN attempts AS firsts ON firsts.queue = messages.queue AND firsts.id = messages.id AND firsts.attempt = 1
)
SELECT
    date, queue, task, count(*) AS messages,
    avg(CASE WHEN first_wait_s <= 1 THEN 1e0 ELSE 0e0 END) AS delivered_in_1_s,
    avg(CASE WHEN first_wait_s <= 10 THEN 1e0 ELSE 0e0 END) AS delivered_in_10_s,
    avg(CASE WHEN first_wait_s <= 60 THEN 1e0 ELSE 0e0 END) AS delivered_in_60_s,
    avg(CASE WHEN first_wait_s <= 600 THEN 1e0 ELSE 0e0 END) AS delivered_in_600_s,
    avg(CASE WHEN state = 'COMPLETED' THEN 1e0 ELSE 0e0 END) AS completed,
    avg(CASE WHEN has_failed(state, reason) THEN 1e0 ELSE 0e0 END) AS failed
FROM waits
GROUP BY date, queue, task
