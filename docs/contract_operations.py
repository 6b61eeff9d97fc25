"""The operations between the rooms above and the store; `docs/design/contract.md` is made from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """One operation: which functions call it, which scripts do it, and what it promises."""

    name: str
    #: Functions of `celery_redis_plus`, as `path.py:Class.method`.
    doors: tuple[str, ...]
    scripts: tuple[str, ...]
    #: States of a message before and after, where it has one.
    states: str
    #: Answers that are no success; nothing is written then, unless it says so.
    refuses: str


NO_STATE = "none changes"
STALE = "stale"
NOT_WAITING = "a message that is claimed, dead or gone"
NO_QUEUE = "`NOQUEUE`"
OPERATIONS = {
    "Publishing": (
        Operation(
            "publish",
            ("broker/publishing/publisher.py:Publisher.to_queue",),
            ("publish_ordinary", "publish", "publish_bounded"),
            "none → ready, delayed; with `drop-head` also ready, delayed → dead; of a message that it replaces ready, delayed → "
            "gone",
            f"{NO_QUEUE}, `REDECLARED` under another queue id, `REROUTE` under another version of the bindings, `DUPLICATE`; "
            "with limits `WAIT`, `THROTTLE`, `FULL`, `REFUSED`, `CHANGED`",
        ),
        Operation(
            "publish a batch",
            ("broker/publishing/publish_batch.py:BatchPublisher.to_queues",),
            ("publish_batch",),
            "none → ready",
            f"{NO_QUEUE}, `REDECLARED`, `ONE_BY_ONE` where only `publish` may; of single messages `DUPLICATE`",
        ),
        Operation(
            "publish to dead letters",
            ("broker/publishing/publisher.py:Publisher.to_dead_letters",),
            ("publish_dead",),
            "none → dead",
            NO_QUEUE,
        ),
        Operation(
            "broadcast",
            ("broker/publishing/publisher.py:Publisher.to_stream",),
            ("publish_fanout", "publish_fanout_bounded"),
            NO_STATE,
            "`REDECLARED`; `NOBODY` without subscribers; with limits as `publish`",
        ),
        Operation(
            "leave the line",
            ("broker/flow_control/publisher_queue.py:PublisherWaitQueue.leave",),
            ("leave_wait_queue",),
            NO_STATE,
            "0 where it does not stand in the line",
        ),
        Operation(
            "track",
            (
                "broker/publishing/delivery_store.py:DeliveryStore.begin",
                "broker/publishing/delivery_store.py:DeliveryStore.report",
                "broker/publishing/delivery_store.py:DeliveryStore.overdue",
            ),
            ("track", "track_report", "track_overdue"),
            NO_STATE,
            "a second final answer changes nothing",
        ),
        Operation(
            "count",
            ("broker/publishing/publisher.py:Publisher.count",),
            ("increment_counters",),
            NO_STATE,
            "0 without a record, where the caller asks for one",
        ),
    ),
    "Consuming": (
        Operation(
            "claim",
            ("broker/consumers/claims.py:ClaimCommands.claim", "broker/consumers/claims.py:ClaimCommands.post"),
            ("claim",),
            "ready → unacked; of acked ones unacked → gone; an expired one ready → delayed",
            "a restricted queue is named, for `claim, restricted`; a queue whose keys cannot be read fails alone",
        ),
        Operation(
            "claim, restricted",
            ("broker/consumers/claims.py:ClaimCommands.claim_restricted",),
            ("claim_restricted",),
            "ready → unacked; in a takeover unacked → ready, delayed, dead",
            "`paused`, `standby`, `outranked`, `again`, `unknown`, `locked`, `unfiltered`",
        ),
        Operation(
            "extend",
            ("broker/consumers/leases.py:Leases.extend", "broker/consumers/leases.py:Leases.confirm"),
            ("extend_leases",),
            NO_STATE,
            "the tags that the process holds no more",
        ),
        Operation(
            "begin",
            ("broker/consumers/acks.py:Acknowledger.begin",),
            ("mark_begun",),
            NO_STATE,
            STALE,
        ),
        Operation(
            "note an error",
            ("broker/consumers/acks.py:Acknowledger.settle", "broker/consumers/acks.py:Acknowledger.tell_failed"),
            ("record_error", "log_failed"),
            NO_STATE,
            STALE,
        ),
        Operation(
            "ack",
            ("broker/consumers/acks.py:Acknowledger.batch_ack", "broker/consumers/acks.py:Acknowledger.flush"),
            ("ack",),
            "any → gone",
            "0 for one that is gone: an ack is idempotent and has no fence",
        ),
        Operation(
            "requeue",
            ("broker/consumers/acks.py:Acknowledger.settle", "broker/consumers/acks.py:Acknowledger.time_out"),
            ("requeue",),
            "unacked → ready, delayed, dead",
            STALE,
        ),
        Operation(
            "reject",
            ("broker/consumers/acks.py:Acknowledger.settle",),
            ("reject",),
            "unacked → dead; in a transient queue without an exchange unacked → gone",
            STALE,
        ),
        Operation(
            "release",
            ("broker/consumers/acks.py:Acknowledger.settle", "broker/queues/messages.py:Messages.give_back"),
            ("release", "notify_if_ready"),
            "unacked → ready, delayed",
            STALE,
        ),
        Operation(
            "release a session",
            ("maintenance/reconnect_recovery.py:ReconnectRecovery.run",),
            ("release_session",),
            "unacked → ready",
            "messages that the process knows stay",
        ),
        Operation(
            "join and leave",
            (
                "broker/consumers/registry.py:Consumers.join",
                "broker/consumers/registry.py:Consumers.check_listed",
                "broker/consumers/registry.py:Consumers.suspend",
                "broker/consumers/registry.py:Consumers.leave",
            ),
            ("register_consumer", "check_consumers", "report_no_credit", "deregister_consumer"),
            NO_STATE,
            "`locked`, `exclusive`, `in use`",
        ),
        Operation(
            "notify",
            ("broker/consumers/wakeup_waiter.py:WakeupWaiter.wake", "broker/consumers/wakeup_waiter.py:WakeupWaiter.notify"),
            ("notify",),
            NO_STATE,
            "none",
        ),
    ),
    "Maintenance": (
        Operation(
            "sweep",
            ("maintenance/sweeper.py:Sweeper.run",),
            ("sweep",),
            "delayed → ready; ready, delayed → dead, gone; unacked → ready, delayed, dead; dead, trash → gone",
            "a queue that another process sweeps; after an outage recovery waits",
        ),
        Operation(
            "send a heartbeat",
            ("broker/consumers/processes.py:Processes.beat",),
            ("heartbeat_process",),
            NO_STATE,
            "`unknown` without a record",
        ),
        Operation(
            "recover a process",
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
            ("shards/dead_letters.py:ShardMoves.move",),
            ("store_once", "remove_stored", "finish_move"),
            "dead → ready of another queue",
            f"{NO_QUEUE}, `LATE`",
        ),
        Operation(
            "change the shard",
            ("shards/queue_move.py:QueueMove.page", "shards/queue_move.py:QueueMove.close_source"),
            ("close_place", "leave_shard", "enter_shard"),
            "ready, delayed, dead → the same in another shard",
            f"{NO_QUEUE}, `LATE`",
        ),
        Operation(
            "hold the raise of the number of shards",
            (
                "shards/raise_hold.py:RaiseHold.begin",
                "shards/raise_hold.py:RaiseHold.renew",
                "shards/raise_hold.py:RaiseHold.end",
            ),
            ("hold_raise", "release_raise"),
            NO_STATE,
            "`busy`, `other`, `moved`",
        ),
        Operation(
            "keep and end transient queues",
            (
                "broker/queues/queues.py:Queues.touch_page",
                "broker/queues/queue_registry.py:QueueRegistry.overdue",
                "broker/queues/queue_registry.py:QueueRegistry.bury",
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
            (
                "broker/queues/queues.py:Queues.declare",
                "broker/queues/queue_registry.py:QueueRegistry.enlist",
                "broker/queues/queue_registry.py:QueueRegistry.ensure_swept",
            ),
            ("declare", "next_queue_id", "list_queue", "add_to_queue_set", "set_event_log"),
            NO_STATE,
            "`differs`, `id`, `remains`",
        ),
        Operation(
            "own a queue",
            ("broker/queues/ownership.py:Ownership.take",),
            ("own_queue",),
            NO_STATE,
            "0 where it has another owner",
        ),
        Operation(
            "purge",
            ("broker/queues/queues.py:Queues.purge", "broker/queues/queues.py:Queues.empty_trash"),
            ("purge", "empty_trash"),
            "ready, delayed → trash; trash → gone",
            "none",
        ),
        Operation(
            "delete a queue",
            ("broker/queues/queues.py:Queues.delete", "broker/queues/queues.py:Queues.let_expire"),
            ("delete",),
            "any → trash",
            "0 where it is in use, not empty, or has another id",
        ),
        Operation(
            "pause and resume",
            ("broker/consumers/pauses.py:Pausing.pause", "broker/consumers/pauses.py:Pausing.resume"),
            ("pause",),
            NO_STATE,
            "0 without a record",
        ),
        Operation(
            "steer a queue",
            ("broker/queues/queues.py:Queues.steer",),
            ("replace_arguments",),
            NO_STATE,
            "empty under another queue id or version of the policies; `COUNT` where bytes were not counted",
        ),
        Operation(
            "list message groups, set a rule",
            ("broker/queues/groups.py:read_groups", "broker/queues/groups.py:set_rule"),
            ("list_groups", "set_group"),
            NO_STATE,
            "0 where the queue has no groups, -1 where too many groups have rules",
        ),
        Operation(
            "list limiters, set a rule, hold one",
            (
                "broker/queues/limiters.py:read_limiters",
                "broker/queues/limiters.py:set_limiter_rule",
                "broker/queues/limiters.py:hold",
            ),
            ("list_limiters", "set_limiter"),
            NO_STATE,
            "-1 where too many limiters have rules",
        ),
        Operation(
            "take of a limiter in a task",
            ("broker/queues/limiters.py:take", "broker/queues/limiters.py:give_back"),
            ("take_limiter",),
            NO_STATE,
            "where there is no room, after how many ms there may be",
        ),
        Operation(
            "write a policy",
            ("broker/queues/policies.py:PolicyList.put", "broker/queues/policies.py:PolicyList.remove"),
            ("write_policy",),
            NO_STATE,
            "0 where it is another one than was read",
        ),
        Operation(
            "declare an exchange, bind",
            (
                "broker/exchanges/bindings.py:Bindings.declare",
                "broker/exchanges/bindings.py:Bindings.bind",
                "broker/exchanges/bindings.py:Bindings.unbind",
            ),
            ("declare_exchange", "bind"),
            NO_STATE,
            "a readable record is returned, not replaced",
        ),
        Operation(
            "subscribe",
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
            ("broker/exchanges/declared_topology.py:DeclaredTopology.check_flush",),
            ("database_id",),
            NO_STATE,
            "the id that stands",
        ),
    ),
    "Operators": (
        Operation(
            "cancel",
            ("broker/queues/messages.py:Messages.cancel",),
            ("cancel",),
            "ready, delayed → gone, dead",
            NOT_WAITING,
        ),
        Operation(
            "reschedule",
            ("broker/queues/messages.py:Messages.reschedule", "broker/queues/messages.py:Messages.prioritize"),
            ("reschedule",),
            "ready, delayed → ready, delayed",
            NOT_WAITING,
        ),
        Operation(
            "move",
            ("broker/queues/messages.py:Messages.move",),
            ("move_message",),
            "ready, delayed → ready, delayed of another queue",
            f"{NOT_WAITING}; {NO_QUEUE} of the target",
        ),
        Operation(
            "kill",
            ("broker/publishing/delivery_store.py:DeliveryStore.kill",),
            ("dead_letter_one",),
            "ready, delayed, unacked → dead",
            "`dead`, `gone`",
        ),
        Operation(
            "delete dead letters",
            ("broker/dead_letters/store.py:DeadLetters.delete", "broker/dead_letters/store.py:DeadLetters.purge"),
            ("delete_dead",),
            "dead → gone, trash",
            "those that are gone are not counted",
        ),
        Operation(
            "migrate",
            ("migration/target.py:Target.store", "migration/exporter.py:Exporter.give"),
            ("take_from_kombu", "store_migrated", "give_to_kombu"),
            "none → ready, delayed; ready, delayed → gone",
            f"0 for a message that is there no more; {NO_QUEUE}",
        ),
        Operation(
            "look",
            (
                "broker/queues/messages.py:Messages.find",
                "broker/queues/listing.py:list_messages",
                "broker/queues/listing.py:search_headers",
                "admin/explanation/facts.py:read_facts",
                "broker/queues/overview.py:read_overview",
                "broker/queues/counters.py:read_counters",
                "broker/queues/queues.py:Queues.consumer_count",
                "broker/consumers/registry.py:Consumers.list",
                "broker/fanout/subscriber_registry.py:SubscriberRegistry.subscribers",
            ),
            (
                "find_message",
                "list_messages",
                "search_messages",
                "explain_message",
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
            ("broker/integrity/checker.py:Checker.run", "admin/diagnosis/rights.py:rights"),
            ("check_queue", "check_messages", "check_groups", "check_limiters", "check_rights"),
            "a message in no place or in several → the place that its fields name",
            "none",
        ),
        Operation(
            "commit events",
            ("event_log/readers.py:commit",),
            ("commit_events",),
            NO_STATE,
            "`OWNED` under another owner; an earlier position changes nothing",
        ),
        Operation(
            "let time pass",
            ("testing/advancing.py:advance",),
            ("advance",),
            NO_STATE,
            "none",
        ),
    ),
}
