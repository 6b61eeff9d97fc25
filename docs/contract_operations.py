"""The operations between the rooms above and the store; docs/generate.py adds keys and bounds from the scripts' headers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """One operation: which functions call it, which scripts do it, and what it promises."""

    name: str
    does: str
    #: Functions of `celery_redis_plus`, as `path.py:Class.method`.
    doors: tuple[str, ...]
    scripts: tuple[str, ...]
    #: States of a message before and after, where it has one.
    states: str
    #: Answers that are no success; nothing is written then, unless it says so.
    refuses: str


NO_STATE = "none changes"
STALE = "an old claim number changes nothing"
NOT_WAITING = "a message that is claimed, dead or gone changes nothing"
NO_QUEUE = "`NOQUEUE` without a record"
OPERATIONS = {
    "Publishing": (
        Operation(
            "publish",
            "Store one message in one queue, once, however often its publisher retries.",
            ("broker/publishing/publisher.py:Publisher.to_queue",),
            ("publish_ordinary", "publish", "publish_bounded"),
            "none → ready, delayed; with `drop-head` also ready, delayed → dead",
            f"{NO_QUEUE}, `REDECLARED` under another queue id, `REROUTE` under another version of the bindings, `DUPLICATE`; "
            "with limits `WAIT`, `THROTTLE`, `FULL`, `REFUSED`, `CHANGED`; a full server refuses the call",
        ),
        Operation(
            "publish a batch",
            "Store messages in one queue, all or none.",
            ("broker/publishing/publish_batch.py:BatchPublisher.publish",),
            ("publish_batch",),
            "none → ready",
            f"{NO_QUEUE}, `REDECLARED`, `ONE_BY_ONE` where only `publish` may; a full server refuses the call",
        ),
        Operation(
            "publish to dead letters",
            "Store a message that no queue takes.",
            ("broker/publishing/publisher.py:Publisher.to_dead_letters",),
            ("publish_dead",),
            "none → dead",
            f"{NO_QUEUE}; a full server refuses the call",
        ),
        Operation(
            "broadcast",
            "Append an entry to a fanout exchange's stream, once.",
            ("broker/publishing/publisher.py:Publisher.to_stream",),
            ("publish_fanout", "publish_fanout_bounded"),
            NO_STATE,
            "`REDECLARED`; `NOBODY` without subscribers; with limits as `publish`; a full server refuses the call",
        ),
        Operation(
            "leave the line",
            "End a publisher's wait for room, and wake the next.",
            ("broker/flow_control/publisher_queue.py:PublisherWaitQueue.leave",),
            ("leave_wait_queue",),
            NO_STATE,
            "0 where it does not stand in the line",
        ),
        Operation(
            "track",
            "Note who has to answer a delivery, what each answered, and who is late.",
            (
                "broker/publishing/delivery_store.py:DeliveryStore.begin",
                "broker/publishing/delivery_store.py:DeliveryStore.report",
                "broker/publishing/delivery_store.py:DeliveryStore.overdue",
            ),
            ("track", "track_report", "track_overdue"),
            NO_STATE,
            "a second final answer changes nothing; a full server refuses `track`",
        ),
        Operation(
            "count",
            "Move a counter of a queue's record on.",
            ("broker/publishing/publisher.py:Publisher.count",),
            ("increment_counters",),
            NO_STATE,
            "0 without a record, where the caller asks for one",
        ),
    ),
    "Consuming": (
        Operation(
            "claim",
            "Take messages of up to 20 queues under a lease, and settle acked ones.",
            ("broker/consumers/claims.py:ClaimCommands.claim", "broker/consumers/claims.py:ClaimCommands.post"),
            ("claim",),
            "ready → unacked; of acked ones unacked → gone; an expired one ready → delayed",
            "a queue with rules is named for `claim, restricted`; a queue whose keys cannot be read fails alone",
        ),
        Operation(
            "claim, restricted",
            "The same of one queue with rules for its consumers.",
            ("broker/consumers/claims.py:ClaimCommands.claim_restricted",),
            ("claim_restricted",),
            "ready → unacked; in a takeover unacked → ready, delayed, dead",
            "`paused`, `standby`, `outranked`, `again`, `unknown`, `locked`, `unfiltered`",
        ),
        Operation(
            "extend",
            "Move the deadlines of leases on.",
            ("broker/consumers/leases.py:Leases.extend", "broker/consumers/leases.py:Leases.confirm"),
            ("extend_leases",),
            NO_STATE,
            "the tags that the process holds no more",
        ),
        Operation(
            "begin",
            "Note that the work on a message begins which failed before.",
            ("broker/consumers/acks.py:Acknowledger.begin",),
            ("mark_begun",),
            NO_STATE,
            STALE,
        ),
        Operation(
            "note an error",
            "Keep the exception with which the work ended; of a message acked early, write the event `failed`.",
            ("broker/consumers/acks.py:Acknowledger.settle", "broker/consumers/acks.py:Acknowledger.tell_failed"),
            ("record_error", "log_failed"),
            NO_STATE,
            STALE,
        ),
        Operation(
            "ack",
            "Remove a message whose work is done, wherever it stands.",
            ("broker/consumers/acks.py:Acknowledger.batch_ack", "broker/consumers/acks.py:Acknowledger.flush"),
            ("ack",),
            "any → gone",
            "0 for one that is gone: an ack is idempotent and has no fence",
        ),
        Operation(
            "requeue",
            "Put a message back after a failure or on request; it may wait, or die at the delivery limit.",
            ("broker/consumers/acks.py:Acknowledger.settle", "broker/consumers/acks.py:Acknowledger.time_out"),
            ("requeue",),
            "unacked → ready, delayed, dead",
            STALE,
        ),
        Operation(
            "reject",
            "Make a dead letter of a message.",
            ("broker/consumers/acks.py:Acknowledger.settle",),
            ("reject",),
            "unacked → dead; in a transient queue without an exchange unacked → gone",
            STALE,
        ),
        Operation(
            "release",
            "Put a message back to its place, without a failure; wake a consumer whose limit has given way.",
            ("broker/consumers/acks.py:Acknowledger.settle",),
            ("release", "notify_if_ready"),
            "unacked → ready, delayed",
            STALE,
        ),
        Operation(
            "release a session",
            "Put back what a broken session holds and its process does not know.",
            ("maintenance/reconnect_recovery.py:ReconnectRecovery.run",),
            ("release_session",),
            "unacked → ready",
            "messages that the process knows stay",
        ),
        Operation(
            "join and leave",
            "List a consumer of a queue, check that it stands on the list, take it off.",
            (
                "broker/consumers/registry.py:Consumers.join",
                "broker/consumers/registry.py:Consumers.check",
                "broker/consumers/registry.py:Consumers.suspend",
                "broker/consumers/registry.py:Consumers.leave",
            ),
            ("register_consumer", "check_consumers", "report_no_credit", "deregister_consumer"),
            NO_STATE,
            "`locked`, `exclusive`, `in use`",
        ),
        Operation(
            "notify",
            "Wake the client that has waited longest on a key.",
            ("broker/consumers/wakeup_waiter.py:WakeupWaiter.wake", "broker/consumers/wakeup_waiter.py:WakeupWaiter.notify"),
            ("notify",),
            NO_STATE,
            "none",
        ),
    ),
    "Maintenance": (
        Operation(
            "sweep",
            "Promote, expire and recover messages of queues, bound dead letters and events, free trash.",
            ("maintenance/sweeper.py:Sweeper.run",),
            ("sweep",),
            "delayed → ready; ready, delayed → dead, gone; unacked → ready, delayed, dead; dead, trash → gone",
            "a queue that another process sweeps; after an outage recovery waits",
        ),
        Operation(
            "send a heartbeat",
            "Note that a process lives, store its record, and elect the leader.",
            ("broker/consumers/processes.py:Processes.beat",),
            ("heartbeat_process",),
            NO_STATE,
            "`unknown` without a record",
        ),
        Operation(
            "recover a process",
            "Fence a lost process, put its messages back, remove its consumers, let no publisher wait for its subscribers.",
            (
                "broker/consumers/processes.py:Processes.replace",
                "broker/consumers/processes.py:Processes.recover",
                "broker/consumers/processes.py:Processes.remove_consumers",
                "broker/fanout/subscriber_registry.py:SubscriberRegistry.suspect",
            ),
            ("replace_process", "recover_sessions", "remove_consumers", "suspect_subscribers"),
            "unacked → ready, delayed, dead",
            "another record, another leader or a heartbeat since then: 0",
        ),
        Operation(
            "forward dead letters",
            "Move dead messages to the queues of their exchange, or keep them.",
            (
                "broker/dead_letters/store.py:DeadLetters.forward_all",
                "broker/dead_letters/store.py:DeadLetters.move_here",
                "broker/dead_letters/store.py:DeadLetters.keep",
            ),
            ("move_dead_letter", "store_dead_letters"),
            "dead → ready of another queue; dead on its way → dead in the store",
            "-1 where it is gone, -2 where no target has a record",
        ),
        Operation(
            "move to another shard",
            "The same to a queue in another hash slot, in three steps.",
            ("shards/dead_letters.py:ShardMoves.move",),
            ("store_once", "remove_stored", "finish_move"),
            "dead → ready of another queue",
            f"{NO_QUEUE}, `LATE`; a full server refuses the first step",
        ),
        Operation(
            "change the shard",
            "Move a queue whose shard is another one since their number was raised, each message with its place.",
            ("shards/queue_move.py:QueueMove.page",),
            ("leave_shard", "enter_shard"),
            "ready, delayed, dead → the same in another shard",
            f"{NO_QUEUE}, `LATE`; a full server refuses the second step",
        ),
        Operation(
            "keep and end transient queues",
            "Extend a transient queue in use; list and bury those that are not; end their event logs.",
            (
                "broker/queues/queues.py:Queues.touch_page",
                "broker/queues/queues.py:Queues.overdue",
                "broker/queues/queues.py:Queues.bury",
                "broker/queues/queues.py:Queues.end_event_log",
            ),
            ("extend_queue_ttl", "list_overdue", "tombstone_queues", "end_event_log"),
            NO_STATE,
            "-1 where the queue is gone",
        ),
    ),
    "Queues and exchanges": (
        Operation(
            "declare a queue",
            "Write a queue's record, or say how the one that stands differs.",
            (
                "broker/queues/queues.py:Queues.declare",
                "broker/queues/queues.py:Queues.enlist",
                "broker/queues/queues.py:ensure_swept",
            ),
            ("declare", "next_queue_id", "list_queue", "add_to_queue_set", "set_event_log"),
            NO_STATE,
            "`differs`, `id`, `remains`",
        ),
        Operation(
            "own a queue",
            "Give an exclusive queue an owner.",
            ("broker/queues/ownership.py:Ownership.take",),
            ("own_queue",),
            NO_STATE,
            "0 where it has another owner",
        ),
        Operation(
            "purge",
            "Move waiting messages to the trash, and free it in pages.",
            ("broker/queues/queues.py:Queues.purge", "broker/queues/queues.py:Queues.empty_trash"),
            ("purge", "empty_trash"),
            "ready, delayed → trash; trash → gone",
            "none",
        ),
        Operation(
            "delete a queue",
            "Remove the record, and move all messages to the trash.",
            ("broker/queues/queues.py:Queues.delete", "broker/queues/queues.py:Queues.let_expire"),
            ("delete",),
            "any → trash",
            "0 where it is in use, not empty, or has another id, and the caller forbids that",
        ),
        Operation(
            "pause and resume",
            "Give consumers nothing more, or go on.",
            ("broker/consumers/pauses.py:Pausing.pause", "broker/consumers/pauses.py:Pausing.resume"),
            ("pause",),
            NO_STATE,
            "0 without a record",
        ),
        Operation(
            "declare an exchange, bind",
            "Write an exchange's record and limits; add and remove bindings under a new version.",
            (
                "broker/exchanges/bindings.py:Bindings.declare",
                "broker/exchanges/bindings.py:Bindings.bind",
                "broker/exchanges/bindings.py:Bindings.unbind",
            ),
            ("declare_exchange", "bind"),
            NO_STATE,
            "a record that stands and can be read is returned, not replaced",
        ),
        Operation(
            "subscribe",
            "Register a subscriber, note its position, end it, remove dead ones.",
            (
                "broker/fanout/subscriber_registry.py:SubscriberRegistry.subscribe",
                "broker/fanout/subscriber_registry.py:SubscriberRegistry.heartbeat",
                "broker/fanout/subscriber_registry.py:SubscriberRegistry.unsubscribe",
                "broker/fanout/subscriber_registry.py:SubscriberRegistry.reap",
            ),
            ("subscribe_fanout", "heartbeat_fanout", "unsubscribe_fanout", "remove_expired_subscribers"),
            NO_STATE,
            "none; a record that is missing is made anew",
        ),
        Operation(
            "name the database",
            "Tell one database, and its data format, from another.",
            ("broker/exchanges/declared_topology.py:DeclaredTopology.check_flush",),
            ("database_id",),
            NO_STATE,
            "the id that stands",
        ),
    ),
    "Operators": (
        Operation(
            "cancel",
            "Remove waiting messages, or make them dead letters.",
            ("broker/queues/messages.py:Messages.cancel",),
            ("cancel",),
            "ready, delayed → gone, dead",
            NOT_WAITING,
        ),
        Operation(
            "reschedule",
            "Give a waiting message another time.",
            ("broker/queues/messages.py:Messages.reschedule",),
            ("reschedule",),
            "ready, delayed → ready, delayed",
            NOT_WAITING,
        ),
        Operation(
            "move",
            "Move a waiting message into another queue.",
            ("broker/queues/messages.py:Messages.move",),
            ("move_message",),
            "ready, delayed → ready, delayed of another queue",
            f"{NOT_WAITING}; {NO_QUEUE} of the target",
        ),
        Operation(
            "kill",
            "Make a dead letter of one message, wherever it is: a tracked one without an answer.",
            ("broker/publishing/delivery_store.py:DeliveryStore.kill",),
            ("dead_letter_one",),
            "ready, delayed, unacked → dead",
            "`dead`, `gone`",
        ),
        Operation(
            "delete dead letters",
            "Delete dead letters, those named or all.",
            ("broker/dead_letters/store.py:DeadLetters.delete", "broker/dead_letters/store.py:DeadLetters.purge"),
            ("delete_dead",),
            "dead → gone, trash",
            "those that are gone are not counted",
        ),
        Operation(
            "migrate",
            "Move messages from kombu's Redis transport, and back.",
            ("migration/target.py:Target.store", "migration/exporter.py:Exporter.give"),
            ("take_from_kombu", "store_migrated", "give_to_kombu"),
            "none → ready, delayed; ready, delayed → gone",
            f"0 for a message that is there no more; {NO_QUEUE}; a full server refuses the call",
        ),
        Operation(
            "look",
            "Read a queue, its messages, consumers, counters or subscribers at one moment.",
            (
                "broker/queues/messages.py:Messages.find",
                "broker/queues/listing.py:list_messages",
                "broker/queues/overview.py:read_overview",
                "broker/queues/counters.py:read_counters",
                "broker/queues/queues.py:Queues.consumer_count",
                "broker/consumers/registry.py:Consumers.list",
                "broker/fanout/subscriber_registry.py:SubscriberRegistry.subscribers",
            ),
            (
                "find_message",
                "list_messages",
                "queue_overview",
                "counters",
                "count_consumers",
                "list_consumers",
                "list_subscribers",
            ),
            NO_STATE,
            "empty answers for what is not there",
        ),
        Operation(
            "check",
            "Hold keys and messages against the rules, repair them, and tell what a user may.",
            ("broker/integrity/checker.py:Checker.run", "admin/diagnosis/rights.py:rights"),
            ("check_queue", "check_messages", "check_rights"),
            "a message in no place or in several → the place that its fields name",
            "none",
        ),
        Operation(
            "commit events",
            "Note what a reader of events has, and trim what all have.",
            ("event_log/readers.py:commit",),
            ("commit_events",),
            NO_STATE,
            "`OWNED` under another owner; an earlier position changes nothing",
        ),
        Operation(
            "let time pass",
            "Make all that a queue holds older, for tests of applications.",
            ("testing/advancing.py:advance",),
            ("advance",),
            NO_STATE,
            "none",
        ),
    ),
}
