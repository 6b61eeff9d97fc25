-- Failed and dead messages by task and exception, without the text behind its colon; the most frequent first. A dead letter that
-- went to another queue is `MOVED`, with the reason why it died.
SELECT
    task, queue, state, coalesce(reason, last_event) AS reason, split_part(error, ':', 1) AS exception,
    count(*) AS messages, min(finished_at) AS first_at, max(finished_at) AS last_at
FROM messages
WHERE has_failed(state, reason)
GROUP BY task, queue, state, coalesce(reason, last_event), split_part(error, ':', 1)
ORDER BY messages DESC, task, queue, state, reason, exception
