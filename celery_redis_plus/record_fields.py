"""The counters of queues, exchanges and processes, with their meaning and unit."""

from __future__ import annotations

#: Counters in a queue's record: they only grow, and are deleted with the record.
COUNTERS = {
    "published": "Messages stored in the queue: published, dead letters of other queues, moved, replayed.",
    "delivered": "Deliveries, including redeliveries.",
    "nacked": "Rejections, with or without requeue, and tracked recipients without an answer.",
    "dead_lettered": "Messages that became dead letters, for any reason.",
    "expired": "Messages that expired: dead letters, and Celery tasks that workers revoke.",
    "throttled": "Publishes that were slowed down.",
    "throttled_us": "Total delay of throttled publishes, µs.",
    "blocked": "Publishes that waited for capacity.",
    "rejected": "Publishes that it refused: full, or not of an accepted type.",
    "purged": "Messages that an operator removed.",
    "cancelled": "Messages cancelled without a dead letter, or replaced by a newer one.",
    "moved": "Messages moved into another queue.",
    "discarded": "Dead messages that a transient queue did not keep.",
    "forwarded": "Dead letters that went to the dead-letter exchange.",
    "replayed": "Dead letters put back into a queue.",
    "dead_evicted": "Dead letters removed by `dead_letter_max` or `dead_letter_ttl`.",
    "dead_deleted": "Dead letters that an operator deleted.",
    "vanished": "Messages whose hash was missing: evicted, or deleted by hand.",
    "damaged": "Messages set aside, as a key or field of theirs is damaged.",
    "unroutable": "Publishes that reached nothing; in `celery_redis_plus.undelivered` only.",
}

#: Times, and numbers of a moment, in a queue's record: they begin anew where they are gone.
TIMES = (
    *("newest", "swept", "lease", "next", "grace", "renewed", "turn", "stalled", "paused_at", "paused_until"),
    *("tokens", "tokens_at", "pacer_until", "tickets", "activations", "damaged_logged"),
)

#: What `counters` shows besides them: computed values, and numbers of messages now.
NOW = {
    "acked": "Acked messages: the rest of `published`, without dead letters that a late ack removed.",
    "throttled_s": "`throttled_us` in seconds.",
    "ready": "Messages that wait, with those that groups or limiters hold back.",
    "delayed": "Messages that are not due yet.",
    "unacked": "Messages that consumers have not settled.",
}

#: Counters of a fanout exchange, in `fanout:{/0.X}`.
FANOUT_COUNTERS = {
    "count": "Broadcasts so far: the number of the last one.",
    "unroutable": "Broadcasts published without a subscriber.",
    "dead": "Subscribers that were removed as dead.",
    "missed": "Broadcasts that removed subscribers had not processed.",
    "bytes": "Bytes of all broadcasts; this and the next ones only with limits.",
    "rejected": "Publishes that it refused, as of a queue.",
    "blocked": "Publishes that waited for capacity.",
    "throttled": "Publishes that were slowed down.",
    "throttled_us": "Total delay of these, µs.",
    "dropped": "Broadcasts that `drop-head` removed unprocessed.",
}

#: Counters of a process's maintenance service: attributes of `MaintenanceService` in `celery_redis_plus/maintenance/service.py`.
PROCESS_COUNTERS = {
    "late_heartbeats": "Heartbeats that came over an interval late.",
    "thread_restarts": "How often the maintenance thread died and was started again.",
    "failed_tasks": "How often a maintenance task failed.",
    "sweeps": "Passes over a queue.",
    "recoveries": "Messages that this process put back: a lease, or a process, was lost.",
    "unreadable_messages": ("Messages that it could not read."),
    "redeliveries": "Messages that it claimed and a consumer had seen before.",
    "reconnects": "Connections that it opened in place of a failed one.",
}

#: What a process knows of itself at one moment, as `celery_redis_plus_worker_*`.
PROCESS_GAUGES = {
    "leads": "1 in the leader, else 0.",
    "failing_tasks": "Maintenance tasks that failed in their last run.",
    "unacked_messages": "Messages that it has, prefetched or at work.",
    "heartbeat_delay_seconds": "By how much the next heartbeat is overdue.",
    "fanout_lag_messages": "Broadcasts that its slowest subscriber had not processed at the last heartbeat.",
}
