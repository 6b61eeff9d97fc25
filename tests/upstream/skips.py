"""The tests that are left out, each with its reason. Everything else must pass.

A test is skipped if it checks how kombu's redis transport works inside (key names, private methods, attributes of its poller) and
not what it does, or if it needs a service that is not a broker. The reason of each skip names the behaviour that counts here.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Begins the reason that pytest shows, to tell our skips from the suite's own.
OURS = "left out: "


@dataclass(frozen=True, slots=True)
class Skip:
    """Tests of one suite that are left out.

    Args:
        suite: `kombu` or `celery`.
        pattern: see `patterns.py`; one without `::` is a whole file, which is then not even imported.
        reason: why.
        everywhere: also when kombu's own redis transport runs.
        one_server: only where the broker is more than one server.
    """

    suite: str
    pattern: str
    reason: str
    everywhere: bool = False
    one_server: bool = False

    @property
    def is_file(self) -> bool:
        """Tell whether the whole file is left out."""
        return "::" not in self.pattern


def _kombu(reason: str, *tests: str, one_server: bool = False) -> list[Skip]:
    return [Skip("kombu", f"test_redis.py::{test}", reason, one_server=one_server) for test in tests]


SKIPS: tuple[Skip, ...] = (
    *_kombu(
        "asks for redis-py's client inside the channel, kombu's pub/sub object and its delivery_loop's tables",
        "test_event_loop_consumes_after_connection_reconnect",
        "test_failed_health_check_raises_connection_error",
    ),
    *_kombu(
        "subscribes to the pub/sub topic that kombu publishes to; ours is a stream",
        "test_RedisPublishBatch::test_fanout_is_deferred_until_flush",
    ),
    *_kombu(
        "expects no batches with retry_on_timeout, by which redis-py may store a pipeline twice; it has no effect here, and a "
        "repeated batch stores each message once",
        "test_RedisPublishBatch::test_retry_on_timeout_keeps_publication_immediate",
    ),
    *_kombu(
        "reads the TTL of the list that kombu keeps a queue in",
        "test_RedisQueueExpiration::test_queue_expiration_set",
        "test_RedisQueueExpiration::test_expiration_gets_reset_on_put",
        "test_RedisQueueExpiration::test_expiration_gets_reset_on_get",
        "test_RedisQueueExpiration::test_queue_expires_for_all_priorities",
    ),
    *_kombu(
        "reads the members of kombu's set of bindings, or calls the scripts that keep it",
        "test_RedisQueueExpiration::test_binding_table_shared_with_queue_without_expires_never_swept",
        "test_RedisQueueExpiration::test_binding_table_swept_after_its_queue_without_expires_is_deleted",
        "test_RedisQueueExpiration::test_deleting_an_expiring_queue_removes_its_binding",
        "test_RedisQueueExpiration::test_refresh_keeps_a_topic_binding_as_bound",
        "test_RedisQueueExpiration::test_refresh_and_sweep_binding_scripts",
        "test_RedisQueueExpiration::test_sweep_script_honors_its_limit",
    ),
    *_kombu(
        "reads kombu's hash of unacked messages and its index, and calls QoS.restore_visible by hand",
        "test_RedisRestoreVisible::test_restore_visible_requeues_expired_unacked",
        "test_RedisRestoreAtShutdown::test_unacked_message_requeued_on_connection_close",
    ),
    *_kombu(
        "makes a read inside kombu's restore transaction fail",
        "test_RedisRestoreBindingLookupFailure::test_failed_requeue_keeps_message_unacked",
        "test_RedisRestoreBindingLookupFailure::test_failed_restore_visible_keeps_message_unacked",
    ),
    *_kombu(
        "expects kombu's header `redelivered`; AMQP, and we, say it in delivery_info",
        "test_RedisRestoreBindingLookupFailure::test_requeue_requeues_message",
    ),
    *_kombu(
        "counts the PONGs of the pub/sub connection that kombu's fanout reads from",
        "test_RedisSubclientHealthCheck::test_healthy_subclient_connection_not_dropped",
        "test_RedisSubclientHealthCheck::test_missed_pongs_drop_connection_and_resubscribe",
    ),
    *_kombu(
        "turns the clock of kombu's BRPOP check",
        "test_RedisBrpopHealthCheck::test_live_connection_with_unread_reply_not_dropped",
        "test_RedisBrpopHealthCheck::test_half_open_connection_dropped_and_consumption_resumes",
        "test_RedisBrpopHealthCheck::test_half_open_connection_dropped_by_drain_events",
    ),
    *_kombu(
        "is about kombu's Sentinel channel: its pub/sub topics, its managers of connections",
        "test_RedisSentinelFanoutCompat::*",
        "test_SentinelManagerClose::test_disconnect_pools_closes_both_managers",
    ),
    *_kombu(
        "connects to the one server of its URL, by kombu's parameters or redis-py's client",
        "test_failed_credentials",
        "test_RedisConnectTimeout",
        "test_RedisConnection_check_hostname",
        "test_RedisQueueExpiration::test_binding_table_*",
        one_server=True,
    ),
    Skip(
        "kombu",
        "test_redis_brpop_qos.py",
        "asks what kombu's delivery_loop does with the socket of an unread BRPOP reply (fds, _in_poll, _brpop_start)",
    ),
    Skip(
        "celery",
        "test_backend.py",
        "Azure Blob Storage as result backend: needs an Azure account and its libraries; no broker in it",
        everywhere=True,
    ),
)


def skips_for(suite: str, transport: str, topology: str = "standalone") -> tuple[Skip, ...]:
    """Return what is left out of `suite` on `transport`."""
    ours = (skip for skip in SKIPS if skip.suite == suite and (skip.everywhere or transport != "redis"))
    return tuple(skip for skip in ours if not skip.one_server or topology != "standalone")
