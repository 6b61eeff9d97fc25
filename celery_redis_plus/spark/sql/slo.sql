-- By day, queue and task: which share of the messages was delivered within 1, 10, 60 and 600 s, and which completed or failed.
SELECT
    date, queue, task, count(*) AS messages,
    avg(CASE WHEN wait_s <= 1 THEN 1e0 ELSE 0e0 END) AS delivered_in_1_s,
    avg(CASE WHEN wait_s <= 10 THEN 1e0 ELSE 0e0 END) AS delivered_in_10_s,
    avg(CASE WHEN wait_s <= 60 THEN 1e0 ELSE 0e0 END) AS delivered_in_60_s,
    avg(CASE WHEN wait_s <= 600 THEN 1e0 ELSE 0e0 END) AS delivered_in_600_s,
    avg(CASE WHEN state = 'COMPLETED' THEN 1e0 ELSE 0e0 END) AS completed,
    avg(CASE WHEN state IN ('FAILED', 'DEAD') THEN 1e0 ELSE 0e0 END) AS failed
FROM messages
GROUP BY date, queue, task
