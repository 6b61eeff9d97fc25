"""The fields of messages, queues and other records, with their meaning and unit; the package has those that are counters."""

from __future__ import annotations

from celery_redis_plus.record_fields import COUNTERS, FANOUT_COUNTERS

#: Fields of `message:{Q}:TAG`.
MESSAGE_FIELDS = {
    "payload": "A line of JSON (headers and properties); behind it the body, up to 1 MB.",
    "body": "A body over 1 MB.",
    "score": "The place of a message that is not ready: rank x 10^13 + ms since the epoch.",
    "delay": "How long it is delayed, ms, if that counts from a command: a retry, a pause, `x-delay`.",
    "waits_since": "When the first one that it replaced was published, ms since the epoch, where that bounds its wait.",
    "claim": "How often it was claimed. Requeue, release and heartbeat name this number; an old one changes nothing.",
    "owner": "The session that has its lease: one server connection's life.",
    "claimed": "When it was claimed last, ms since the epoch.",
    "failed": "Failed deliveries.",
    "requeues": "Deliveries that ended with a requested requeue.",
    "begun": "Number of the claim whose task has begun.",
    "unbegun": "How often it was lost before it was begun.",
    "seen": "1: a consumer has seen it, so it is redelivered next time.",
    "retried": "1: its retry was published: it is acked when it comes again.",
    "expires": "When it expires, ms since the epoch.",
    "task_expiry": "Of a Celery task with `expires`: `ahead`, or `over`: a worker revokes it.",
    "ttl_ms": "Its time to live once it is ready, ms.",
    "rank": "Its priority, 0 first, where its place does not tell it.",
    "priority": "The priority that an operator gave it.",
    "group": "Its message group.",
    "limiter": "Its header `x-limiter`.",
    "error": "The exception of its last failed task: class name, TAB, text.",
    "erred": "Number of the claim whose task has failed by it.",
    "reason": "Why it became a dead letter.",
    "died": "When, ms since the epoch. With this field it counts as dead, in whatever set its tag is.",
}

#: Fields of `meta:{Q}`.
QUEUE_FIELDS = {
    "id": "The queue's id, a number in base 36 and five random digits; another one when it is declared anew.",
    "arguments": "The arguments in force (JSON).",
    "declared": "Its declaration (JSON), where a policy replaces some of its arguments.",
    "format": "Version of the data layout.",
    "assumed": "1: written by a process that did not know the arguments; one that does replaces them.",
    "expires": "The TTL of a transient queue's record, ms.",
    "ttl": "The TTL of its other keys and messages, ms: an hour, or four times `expires` if that is longer.",
    "renewed": "When the TTL of its messages was renewed, ms since the epoch.",
    "owner": "The connection of an exclusive queue: session, server's number and address.",
    "message_ttl": "`x-message-ttl`, ms.",
    "limit": "`x-delivery-limit`.",
    "retry": "The retry policy, as `lua/include/retry_delay.lua` reads it.",
    "redrive": "`x-redrive`.",
    "dlx": "1: the queue has a dead-letter exchange.",
    "ageing": "`x-priority-ageing`, ms.",
    "event_log": "How its events are written, see `event_log/settings.py`.",
    "limited": "Its limits, see `broker/arguments/limits.py`.",
    "bytes": "Bytes of its messages, where `x-max-length-bytes` limits them.",
    "waiting_publishers": "Key of its waiting publishers.",
    "tickets": "The last ticket that a waiting publisher got.",
    "groups": "Concurrency and ready messages of its groups, each `-` for no limit, and `strict` or `step-aside`.",
    "group_rules": "Overrides for single groups (JSON): group -> concurrency, weight, paused.",
    "turn": "The time of a group's last turn, ms since the epoch; up to a second ahead.",
    "tended": "The last group that the sweep has looked at.",
    "limiters": "1: messages of it wait for limiters.",
    "limiters_tended": "The last limiter that the sweep has looked at.",
    "restricted": "`declared` or `now`: it has rules for its consumers, by its arguments or only now.",
    "sac": "1: single active consumer.",
    "active": "Id of the active consumer.",
    "activations": "How often it changed; this fences the former one.",
    "takeover": "Sessions of dead ones, whose messages the next one takes over.",
    "takeover_at": "How far the takeover has come.",
    "exclusive": "Id of the exclusive consumer.",
    "prioritised": "1: consumers have priorities.",
    "stalled": "Since when woken consumers of a higher priority do not fetch, ms since the epoch.",
    "max_unacked": "`x-max-unacked`.",
    "filtered": "1: `x-filtered`.",
    "rate": "`x-rate-limit`, messages per second.",
    "burst": "Most tokens.",
    "tokens": "Tokens at `tokens_at`.",
    "tokens_at": "ms since the epoch.",
    "pacer": "The consumer that comes back for the next token.",
    "pacer_until": "Until when the other consumers wait for it, ms since the epoch.",
    "wakeup": "Key of the wake-up that the next message notifies, if not that of all consumers.",
    "quiet": "1: publishers send no wakeup, as no consumer may take messages.",
    "paused": "Why the queue is paused.",
    "paused_at": "Since when, ms since the epoch.",
    "paused_until": "Until when, ms since the epoch; 0 is for good.",
    "paused_by": "Who paused it.",
    "newest": "The latest time in a tag or place, ms since the epoch: it never goes back.",
    "sweeper": "The process that sweeps the queue.",
    "lease": "Until when only this process sweeps, ms since the epoch.",
    "swept": "The last sweep, ms since the epoch.",
    "rebase_cursor": "After a step of the clock back: cursor in `delayed`, `swept`, time of that pass.",
    "next": "Latest time of the next sweep, ms since the epoch.",
    "grace": "Until when nothing is recovered, after an outage; ms since the epoch.",
    "timeouts": "Shortest and longest visibility timeout of its consumers, ms, each with when it was heard last.",
    "damaged_logged": "`damaged` at its last line in the log.",
    **COUNTERS,
}

#: Fields of `consumer:{Q}:CONSUMER`.
CONSUMER_FIELDS = {
    "heard": "When its process reported its state last, ms since the epoch.",
    "priority": "`x-priority`.",
    "tag": "Its consumer tag.",
    "process": "Its process, as the registry of processes names it.",
    "host": "Name of its host.",
    "pid": "Its process id.",
    "state": "`with_credit`, `notified` or `not interested`.",
    "timeout": "How long its process may be silent, ms.",
}

#: Fields of `leader:{presence}`.
LEADER_FIELDS = {
    "process": "The leader, as the registry of processes names it.",
    "epoch": "Grows with each new leader, and fences the earlier ones.",
    "until": "End of its lease, ms since the epoch.",
    "asks": "2: the leader may ask the server for connections; else 1.",
    "heard": "The last heartbeat of any process, ms since the epoch.",
    "resumed": "End of the last pause of all heartbeats, ms since the epoch: silence counts from then.",
}

#: Fields of `fanout:{/0.X}`.
FANOUT_FIELDS = {
    **FANOUT_COUNTERS,
    "limited": "Its limits, as `Limits.encode` writes them.",
    "arguments": "Its arguments of flow control (JSON), likewise.",
    "tickets": "Number of the last publisher that had to wait.",
    "large": "Number of the last broadcast over 16 KB.",
    "largest": "Bytes of the largest one.",
    "trimmed": "When the stream was trimmed last, ms since the epoch.",
}

#: Fields of `track:{ID}`.
DELIVERY_FIELDS = {
    "began": "ms since the epoch.",
    "deadline": "ms since the epoch.",
    "resolved": "When its last recipient gave its final answer, ms since the epoch.",
    "about": "Description (JSON).",
    "open": "How many recipients have not given their final answer.",
    "payload": "The payload, for recipients that have no queue.",
    "to:NAME": "A recipient's answer: `pending`, or an outcome (`lua/track_report.lua`).",
    "tag:NAME": "Tag of a recipient's message.",
    "asker": "The process that resolves overdue recipients.",
    "asked": "Until when it does so alone, ms since the epoch.",
}

EVENTS_META_FIELDS = {
    "version": "Highest schema version in the stream.",
    "epoch": "The current epoch.",
    "ended": "Epochs that are over, oldest first: `EPOCH:LAST EPOCH:LAST `.",
    "skipped": "How many events were not written because memory was full.",
    "skipped_logged": "How many of these the log has reported.",
    "checked": "Server ms of the last look at memory and `run_id`.",
    "full": "Whether memory was full then: 0 or 1.",
    "permille": "The share of messages with events then, in thousandths.",
    "payload": "Whether `published` had payloads then: 0 or 1.",
    "run": "The server's `run_id` then; another one begins a new epoch.",
    "removed": "How many events of ended epochs were removed.",
    "overrun": "How many events were trimmed before a registered reader had committed them.",
}
