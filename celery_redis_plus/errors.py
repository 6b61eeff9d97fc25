"""Every error that this package raises. `error_translation.py` translates redis-py's errors into them.

A class's docstring has the cause and the remedy. `docs/errors.md` prints these docstrings, so they are complete
sentences. Besides the base class, each error inherits from the family by which kombu and Celery decide:

* *connection* (`redis.ConnectionError`, `redis.TimeoutError`): Celery closes the connection, opens another;
* *channel* (`redis.ResponseError`): connecting again would not help, so there is no retry;
* *value* (`ValueError`): the caller passed something that can never work;
* *broker*: errors with an AMQP reply code (`reply_code`); they are kombu's `ChannelError` as well. Those for which py-amqp
  has a class are of that class: code that was written for `pyamqp://` catches them;
* *refusal*: a queue refuses a message; there is no retry, because only the caller can decide about that.

Messages name the address (`Address.display()`), the option or argument, its value and the allowed values. They
contain no secrets.
"""

# ruff: noqa: N818 - a user reads `except ServerUnreachable`; "Error" at the end of every name adds nothing

from __future__ import annotations

from typing import ClassVar

from amqp import exceptions as amqp_errors
from redis import exceptions as redis_errors


class CeleryRedisPlusError(Exception):
    """Base of all errors of celery-redis-plus. Catch it to catch them all."""

    #: The remedy in short; part of the message.
    remedy: ClassVar[str] = ""

    # redis-py 8 prints only "network:ServerTimeout"; a log needs the message.
    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def _describe(error: amqp_errors.AMQPError, text: str) -> None:
    """Give an error of py-amqp's its text. Its own arguments (`method_sig`, `reply_text`) would be the first of a pickled one."""
    Exception.__init__(error, text)
    error.message = error.reply_text = text
    error.method_sig, error.method_name = None, ""


# --------------------------------------------------------------------------- connection family: connect again


class ServerUnreachable(CeleryRedisPlusError, redis_errors.ConnectionError):
    """The connection to the server failed or broke.

    If that persists, check the server, its `maxclients`, firewalls, and `broker_url`.
    """

    remedy = "check that the server runs and that broker_url is right"


class ConsumerCancelled(CeleryRedisPlusError, amqp_errors.ConsumerCancelled):
    """A consumer was cancelled: its queue was deleted, or declared again as one that it cannot consume.

    Celery and kombu's mixins declare it again; other programs go on with the other consumers. `on_cancel` is called instead.
    """

    def __init__(self, text: str = "") -> None:
        """Say what happened."""
        _describe(self, text)


class TlsFailed(ServerUnreachable):
    """The TLS handshake failed, or only one side speaks TLS.

    `redispluss://` is for ports with TLS. `ssl_ca_certs` must have the authority of the server's certificate; a server that
    wants one from its clients needs `ssl_certfile` and `ssl_keyfile`.
    """

    remedy = (
        "check ssl_ca_certs, ssl_cert_reqs and ssl_check_hostname, that this port speaks TLS, and ssl_certfile and ssl_keyfile "
        "where the server wants a client's certificate"
    )


class MasterNotFound(ServerUnreachable):
    """No Sentinel named a master that takes connections, or no cluster node the owner of the broker's slot.

    A failover may be under way. Otherwise check the Sentinels or nodes in `broker_url`, `master_name` against `sentinel
    monitor`, and CLUSTER INFO.
    """

    remedy = "check the Sentinels or nodes in broker_url, and that enough of them run for a failover"

    def __init__(self, text: str, *, unknown: bool = False) -> None:
        """Store whether the name is `unknown` to all Sentinels, so that waiting does not help."""
        super().__init__(text)
        self.unknown = unknown


class ShardUnreachable(ServerUnreachable):
    """One of several shards cannot be reached.

    Its queues take no messages until it is back. Publish again later, or check the shard's node.
    """

    remedy = "check the node of this shard; the queues of the other shards work"


class NotRedis(CeleryRedisPlusError, redis_errors.ConnectionError, redis_errors.InvalidResponse):
    """The server's reply is not in the Redis protocol.

    Check host and port for a proxy or an HTTP server.
    """

    remedy = "check host and port in broker_url"


class ServerTimeout(CeleryRedisPlusError, redis_errors.TimeoutError):
    """The server did not accept a connection, or reply, in time.

    If that persists, check the network and the server's load, or raise `socket_connect_timeout` or `socket_timeout`.
    """

    remedy = "check the network and the server's load, or raise socket_timeout or socket_connect_timeout"


class ServerLoading(CeleryRedisPlusError, redis_errors.BusyLoadingError):
    """The server has started and still loads its data set. Wait."""

    remedy = "wait until it has loaded its data set"


class ServerUnavailable(CeleryRedisPlusError, redis_errors.ConnectionError, redis_errors.ResponseError):
    """The server refuses this command for now; nothing was changed.

    It cannot write its snapshot (MISCONF, as on a full disk), has too few replicas (NOREPLICAS), runs a long script (BUSY), or
    lost its scripts (SCRIPT FLUSH). Its log has the reason.
    """

    remedy = "see the server's log for the reason; the next try may succeed"


class ReadOnlyReplica(CeleryRedisPlusError, redis_errors.ConnectionError, redis_errors.ReadOnlyError):
    """The server is a read-only replica, such as a demoted primary. If that persists, point `broker_url` at the primary."""

    remedy = "point broker_url at the primary"


class SlotUnavailable(CeleryRedisPlusError, redis_errors.ConnectionError, redis_errors.ResponseError):
    """A cluster node does not serve the broker's hash slot.

    Another node owns it (MOVED), it is on its way (ASK, TRYAGAIN), or the cluster is incomplete (CLUSTERDOWN). If that
    persists, see CLUSTER INFO and CLUSTER NODES.
    """

    remedy = "wait for the end of the failover or the migration; if it lasts, see CLUSTER INFO and CLUSTER NODES"


#: What a server answers that is not the one to be asked, or not any more: its connections are left, the next ones lead elsewhere.
WRONG_SERVER = (ReadOnlyReplica, SlotUnavailable)


class AuthenticationFailed(CeleryRedisPlusError, redis_errors.AuthenticationError):
    """The server refused the user name or password, or got none.

    Correct `broker_url` (special characters percent-encoded) or the credential provider.
    """

    remedy = "correct the user name or password in broker_url"


# ------------------------------------------------------------ channel family: connecting again would not help


class NoPermission(CeleryRedisPlusError, redis_errors.NoPermissionError):
    """The server's ACL forbids this user a command or a key, which the message names.

    The page "Access rules" has the rights of each role.
    """

    remedy = "grant it with ACL SETUSER"


class ServerTooOld(CeleryRedisPlusError, redis_errors.RedisError):
    """The server is older than Redis 7.0 or Valkey 7.2. Upgrade it; nothing was changed in it."""

    remedy = "upgrade the server, or point broker_url at a newer one"


class CommandUnavailable(CeleryRedisPlusError, redis_errors.ResponseError):
    """The server lacks a command: renamed or disabled, or the server is neither Redis nor Valkey.

    See the page "Servers".
    """

    remedy = "allow the command on the server, or use another one; the page Servers (docs/servers.md) has all that are needed"


class ServerOutOfMemory(CeleryRedisPlusError, redis_errors.OutOfMemoryError):
    """The server reached its `maxmemory`; nothing was stored.

    The server's words are `OOM command not allowed when used memory > 'maxmemory'`. Workers go on, which frees memory. Otherwise
    raise `maxmemory` or add workers.
    """

    remedy = "raise maxmemory, or let workers drain the queues"


class WrongKeyType(CeleryRedisPlusError, redis_errors.ResponseError):
    """A key of this transport holds a value of another type.

    Another program, or kombu's Redis transport, uses this database. Use another number, or `global_keyprefix`.
    """

    remedy = "use another database number, or set the transport option global_keyprefix"


class DamagedRecord(CeleryRedisPlusError, redis_errors.ResponseError):
    """A key of this transport holds a text where a script needs a number: somebody has changed it.

    `celery-redis-plus check` names the field. `check --repair` mends counters and times; an argument has to be set by hand.
    """

    remedy = "run `celery-redis-plus check --repair`"


class OtherDataFormat(CeleryRedisPlusError, redis_errors.ResponseError):
    """A version of this package with another data format wrote this database.

    Use one version in all processes of a broker, or upgrade as the changelog says.
    """

    remedy = "use a version of celery-redis-plus that knows this format, in all processes of the broker"


class ClusterRedirected(CeleryRedisPlusError, redis_errors.ResponseError):
    """The server is a node of a Redis Cluster, and `broker_url` names it as a single server.

    Write `redisplus+cluster://host:port/0`, or `redispluss+cluster://` for TLS.
    """

    remedy = "write redisplus+cluster://host:port/0 in broker_url, or redispluss+cluster:// for TLS"


# ------------------------------------------------------------ value family: the caller's input can never work


class InvalidArgument(CeleryRedisPlusError, ValueError):
    """An argument is not allowed. The message has the allowed values."""


class OptionError(InvalidArgument):
    """A transport option is unknown, of the wrong type or out of range.

    The message has the allowed values, or the nearest name.
    """


class ShardsRaised(OptionError, redis_errors.ResponseError):
    """The broker has more shards than the process's option `shards` says (`celery-redis-plus shards raise`).

    Nothing was stored. Set the option to the new number. A process with several shards uses it by itself.
    """

    def __init__(self, text: str, shards: int = 0) -> None:
        """Say so; `shards` is the number that the broker has now."""
        super().__init__(text)
        self.shards = shards


class InvalidAddress(InvalidArgument):
    """The broker URL, or its port, database number or TLS option, cannot be used.

    Percent-encode special characters in user names and passwords.
    """

    remedy = "use a database that the server has: 0 to 15 by default, only 0 in cluster mode"


class InvalidPriority(InvalidArgument):
    """A priority is no integer from 0 to 255. Correct `priority=`."""


class InvalidEta(InvalidArgument):
    """An ETA or delay is negative, or is no ISO 8601 text, datetime or number. Correct `eta=` or `countdown=`."""


class InvalidExpiration(InvalidArgument):
    """An `expiration` is no duration in milliseconds, or a task's `expires` is no time. Correct it."""


class InvalidQueueName(InvalidArgument):
    """A queue's name is empty or not text. Give the queue a name."""


class UnsupportedVersion(CeleryRedisPlusError, ImportError):
    """The installed Celery, kombu or billiard does not fit. Install a version that the message names."""


class UnknownEventSchema(CeleryRedisPlusError):
    """Another release wrote the lifecycle events, in an unknown format.

    Upgrade celery-redis-plus where they are read.
    """


class EventsLost(CeleryRedisPlusError):
    """Lifecycle events were removed before a reader had read them.

    The cause is `event_log_maxlen`, `event_log_max_age`, or the end of their stream. Read sooner or keep more.
    `failOnDataLoss=false` goes on without them, and counts them.
    """


class ReaderTaken(CeleryRedisPlusError):
    """Another folder of tables has a reader of lifecycle events by this name.

    Choose another name, or remove the other reader (`events drop-reader`).
    """


class NoEvents(CeleryRedisPlusError):
    """A queue has no lifecycle events.

    Enable `event_log`, or check the queue's name, prefix and database number.
    """


class TablesUnusable(CeleryRedisPlusError):
    """A folder of tables does not exist yet, is damaged or newer, or in use by another process.

    The message has the command to run.
    """


class ObjectStoreFailed(TablesUnusable):
    """An object store refuses, or cannot be reached.

    Check network, bucket and rights. `spark ingest` and `spark run` try again by themselves.
    """


class SparkJobFailed(CeleryRedisPlusError):
    """A Spark job failed.

    The message is the error of Spark's Python processes; `--verbose` shows the Java traces.
    """


class SparkUnavailable(CeleryRedisPlusError):
    """PySpark or Java is missing or too old. Install what the message names."""


class MessageTooLarge(InvalidArgument):
    """A message exceeds 512 MB, the limit of one Redis value.

    Store the data elsewhere and send its location.
    """


# --------------------------------------------------------------- broker family: errors with an AMQP reply code


class BrokerError(CeleryRedisPlusError, amqp_errors.ChannelError):
    """Base of the errors with an AMQP 0-9-1 reply code (`code`). Each is a `ChannelError` of kombu."""

    #: AMQP 0-9-1 reply code.
    reply_code = 541

    def __init__(self, text: str = "") -> None:
        """Say what happened."""
        _describe(self, text)
        self.code = self.reply_code

    def __str__(self) -> str:
        return str(self.reply_text)


class QueueNotFound(BrokerError, amqp_errors.NotFound):
    """The queue does not exist, or has expired. Declare it first."""

    reply_code = 404


class ExchangeNotFound(BrokerError, amqp_errors.NotFound):
    """The exchange does not exist. Declare it first."""

    reply_code = 404


class Unroutable(BrokerError):
    """No queue took the message: no binding matches, or the transient queue has vanished.

    Nothing is stored. Declare and bind the queue first.
    """

    reply_code = 312


class DeliveryNotFound(BrokerError, amqp_errors.NotFound):
    """No tracked delivery has this id: it never existed, or its state has expired. Ask sooner."""

    reply_code = 404


class AccessRefused(BrokerError, amqp_errors.AccessRefused):
    """Another consumer has the queue exclusively, or this one wants a queue with consumers for itself.

    Cancel the other consumer first.
    """

    reply_code = 403


class ResourceLocked(BrokerError, amqp_errors.ResourceLocked):
    """The queue belongs to another connection, which declared it with `exclusive=True`.

    Others may only publish to it. Or it has a single active consumer, so `basic_get` is refused: consume it.
    """

    reply_code = 405


class PreconditionFailed(BrokerError, amqp_errors.PreconditionFailed):
    """A queue or exchange exists with other arguments, or its type does not allow what was asked for.

    Declare it with the same ones, or delete it first. Arguments that only steer a queue may differ (option `on_mismatch`).
    """

    reply_code = 406


class ChannelClosed(BrokerError):
    """The channel is closed. Open another one with `connection.channel()`."""

    reply_code = 504


class NotAllowed(BrokerError):
    """A consumer tag is in use on its channel. Give each consumer a tag of its own, or none."""

    reply_code = 530


class NotSupported(BrokerError):
    """The broker lacks this function of AMQP, or has it only without shards.

    The message has the alternative.
    """

    reply_code = 540


class OutcomeUnknown(BrokerError):
    """A publish lost its reply and was retried later than `publish_dedup_window` allows.

    Check whether it arrived: sending it again might store a second one. A longer window avoids this.
    """


# ------------------------------------------------------------------- no family: only the caller can decide


class NotReplicated(CeleryRedisPlusError):
    """The message is stored, but fewer than `wait_replicas` replicas had it within `wait_replicas_timeout`.

    Consumers receive it; a failover now might lose it. Check the replicas. Do not publish it again: that stores a second one.
    A retry with `retry_errors` only asks the replicas again.
    """

    def __init__(self, text: str, *, confirmed: int = 0, wanted: int = 0) -> None:
        """Store how many replicas have `confirmed` the publish, and how many were `wanted`."""
        super().__init__(text)
        #: Replicas that have confirmed the message.
        self.confirmed = confirmed
        #: The value of `wait_replicas`.
        self.wanted = wanted


class NoFence(CeleryRedisPlusError):
    """`fence()` was called outside a task, or in one whose message is a broadcast or came over another broker.

    Call it in the thread of a task that was sent to a queue of this broker.
    """


class LimitReached(CeleryRedisPlusError):
    """`limit` found no room within its `timeout`; there may be some in `retry_after` seconds.

    Let the task come again then, with `retry_on={LimitReached: from_error("retry_after")}`.
    """

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        """Name the limiter; `retry_after` is in seconds."""
        super().__init__(message)
        self.retry_after = retry_after


class SnoozedTooOften(CeleryRedisPlusError):
    """A task called `snooze()` as often as its `limit` allows. Raise it, or find out why the task cannot begin."""


class NotSettled(CeleryRedisPlusError):
    """A task's `ack()`, `nack()` or `reject()` cannot settle its message; the error says why.

    The call came outside a task, in an eager one, or twice, or another consumer has the message. It needs `acks_late=True` or
    an ack policy that acks later.
    """


# ---------------------------------------------------------------- refusal family: the queue refuses the message


class PublishRefused(CeleryRedisPlusError):
    """Base of the refusals by a queue: nothing is stored there. Neither kombu nor Celery tries again."""


class MessageNotAccepted(PublishRefused, InvalidArgument):
    """A typed queue does not accept a message of this type. Publish to another queue, or correct it."""


class QueueFull(PublishRefused):
    """A queue, or fanout exchange, has reached a limit (`x-max-length`, `x-max-length-bytes`, `x-max-pending`).

    The message is not in it; with `x-overflow: reject-publish-dlx` it is a dead letter (`is_dead_letter` is true). Publish
    later, add consumers, or raise the limit.
    """

    #: Whether the message has become a dead letter.
    is_dead_letter = False


class PublishTimedOut(QueueFull):
    """A queue with `x-overflow: block` stayed full for `publish_timeout` seconds; nothing is stored.

    Publish later, or add consumers.
    """


class PublisherBlocksItself(QueueFull):
    """A queue with `x-overflow: block` is full, and only the publisher's own thread consumes it.

    Nothing is stored. Use another thread or process than the consumer's, or raise the limit.
    """
