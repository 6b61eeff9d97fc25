"""Every error that this package raises. What redis-py raises becomes one of them in `error_translation.py`.

A class's docstring says what happened and what the user does now; `docs/` prints these docstrings, so they
are complete sentences. Besides the one base class, each error also inherits from the family that kombu and
Celery decide by:

* *connection* (`redis.ConnectionError`, `redis.TimeoutError`): Celery closes the connection, opens another;
* *channel* (`redis.ResponseError`): connecting again would not help, so nobody retries;
* *value* (`ValueError`): the caller passed something that can never work;
* *broker*: what AMQP has a reply code for (`reply_code`); the transport makes kombu's errors of them;
* *refusal*: a queue does not take a message; nobody retries, because only the caller knows whether that makes sense.

Messages name the place (`Address.display()`), the option or argument, its value and what is allowed. They
hold no secrets.
"""

# ruff: noqa: N818 - a user reads `except ServerUnreachable`; "Error" at the end of every name adds nothing

from __future__ import annotations

from typing import ClassVar

from redis import exceptions as redis_errors


class CeleryRedisPlusError(Exception):
    """Base of all errors of celery-redis-plus. Catch it to catch them all."""

    #: What the user does now, in short; part of the message.
    remedy: ClassVar[str] = ""

    # redis-py 8 prints only "network:ServerTimeout"; the message is what a log needs.
    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


# --------------------------------------------------------------------------- connection family: connect again


class ServerUnreachable(CeleryRedisPlusError, redis_errors.ConnectionError):
    """No connection to the server, or it broke. Celery reconnects by itself; if that does not help, check
    that the server runs, that host and port in `broker_url` are right, and that no firewall is between.
    """

    remedy = "check that the server runs and that broker_url is right"


class TlsFailed(ServerUnreachable):
    """The TLS handshake failed, or only one side speaks TLS, which the message says. Check that the server's port
    speaks TLS exactly if the URL says so (`redispluss://`), and that `ssl_ca_certs` holds the authority that signed
    the server's certificate for this host name. For a test server with a self-signed certificate,
    `ssl_cert_reqs=none` switches the check off.
    """

    remedy = "check ssl_ca_certs, ssl_cert_reqs and ssl_check_hostname, and that this port speaks TLS"


class NotRedis(CeleryRedisPlusError, redis_errors.ConnectionError, redis_errors.InvalidResponse):
    """What answered does not speak the Redis protocol. Check host and port, and whether a proxy or an HTTP
    server listens there.
    """

    remedy = "check host and port in broker_url"


class ServerTimeout(CeleryRedisPlusError, redis_errors.TimeoutError):
    """The server did not accept a connection, or did not answer, in time. Celery reconnects by itself. If it
    stays so, check the network and the server's load, or raise `socket_connect_timeout` or `socket_timeout`
    (seconds).
    """

    remedy = "check the network and the server's load, or raise socket_timeout or socket_connect_timeout"


class ServerLoading(CeleryRedisPlusError, redis_errors.BusyLoadingError):
    """The server has started and still loads its data set. Wait: Celery tries again until it is done."""

    remedy = "wait until it has loaded its data set"


class ServerUnavailable(CeleryRedisPlusError, redis_errors.ConnectionError, redis_errors.ResponseError):
    """The server answers, but refuses this command for the time being: it cannot write its snapshot
    (MISCONF), has too few replicas (NOREPLICAS), runs a long script (BUSY), or its cluster is incomplete
    (CLUSTERDOWN, TRYAGAIN), or lost a script again and again before it ran (SCRIPT FLUSH). Nothing was changed;
    Celery tries again. Look into the server's log for the reason.
    """

    remedy = "see the server's log; it may be over soon"


class ReadOnlyReplica(CeleryRedisPlusError, redis_errors.ConnectionError, redis_errors.ReadOnlyError):
    """The server is a read-only replica, perhaps a primary that was demoted a moment ago. Celery reconnects,
    which helps once the name in `broker_url` leads to the new primary. If it stays so, point `broker_url` at
    the primary.
    """

    remedy = "point broker_url at the primary"


class AuthenticationFailed(CeleryRedisPlusError, redis_errors.AuthenticationError):
    """The server refused the user name or password, or wants one and got none. Correct them in `broker_url`
    (special characters percent-encoded) or in the credential provider.
    """

    remedy = "correct the user name or password in broker_url"


# ------------------------------------------------------------ channel family: connecting again would not help


class NoPermission(CeleryRedisPlusError, redis_errors.NoPermissionError):
    """The server's ACL forbids this user a command or a key. Grant it, e.g. `ACL SETUSER name +@all -@admin
    -@dangerous +info ~prefix*`; the message names the command or script, and the key, that was refused.
    """

    remedy = "grant it with ACL SETUSER"


class ServerTooOld(CeleryRedisPlusError, redis_errors.RedisError):
    """The server is older than Redis 7.0 or Valkey 7.2, which this transport needs. Upgrade the server;
    celery-redis-plus did not change anything in it.
    """

    remedy = "upgrade the server, or point broker_url at a newer one"


class ServerOutOfMemory(CeleryRedisPlusError, redis_errors.OutOfMemoryError):
    """The server reached its `maxmemory` and refuses to store more. Nothing was stored. Workers can go on
    consuming, which frees memory; or raise `maxmemory` (CONFIG SET maxmemory), add workers, or publish less.
    """

    remedy = "raise maxmemory, or let workers drain the queues"


class WrongKeyType(CeleryRedisPlusError, redis_errors.ResponseError):
    """A key that this transport uses already holds a value of another type, written by another program or by
    kombu's own Redis transport. The message names the command or script, the key, its type and the expected one. Use
    another database number or set the transport option `global_keyprefix`.
    """

    remedy = "use another database number, or set the transport option global_keyprefix"


class ClusterRedirected(CeleryRedisPlusError, redis_errors.ResponseError):
    """The server is a node of a Redis Cluster, which keeps only some of the keys. Point `broker_url` at a server
    that does not run in cluster mode.
    """

    remedy = "point broker_url at a server that does not run in cluster mode"


# ------------------------------------------------------------ value family: the caller's input can never work


class InvalidArgument(CeleryRedisPlusError, ValueError):
    """An argument is not allowed. The message names it, its value and what is allowed."""


class OptionError(InvalidArgument):
    """A transport option is unknown, of the wrong type or out of range. Correct `broker_transport_options`;
    the message names the option, its value and what is allowed, or the nearest known name.
    """


class InvalidAddress(InvalidArgument):
    """The broker URL, or a part of it such as the port, the database number or a TLS option, cannot be used.
    Correct `broker_url` (special characters in user names and passwords must be percent-encoded).
    """

    remedy = "use a database that the server has: 0 to 15 by default, only 0 in cluster mode"


class InvalidPriority(InvalidArgument):
    """A priority is not an integer from 0 to 255. Correct the `priority=` argument. The message was not
    published.
    """


class InvalidEta(InvalidArgument):
    """An ETA or delay is not a time: neither ISO 8601, a datetime nor a number, or it is negative. Correct
    `eta=` or `countdown=`. The message was not published.
    """


class InvalidExpiration(InvalidArgument):
    """The `expiration` of a message is not a time to live in milliseconds, or the `expires` of a task is not a moment.
    Correct `expiration=` or `expires=`. The message was not published.
    """


class InvalidQueueName(InvalidArgument):
    """A queue's name is empty or not text. Give the queue a name."""


class UnsupportedVersion(CeleryRedisPlusError, ImportError):
    """The installed Celery, kombu or billiard lacks an internal name that this package builds on. The message names
    it, the installed versions and the supported ones. Install a supported version.
    """


class UnknownEventSchema(CeleryRedisPlusError):
    """Lifecycle events were written by another release, in a form that this one does not know. Upgrade
    celery-redis-plus where the events are read; they stay in their stream until then.
    """


class EventsLost(CeleryRedisPlusError):
    """Lifecycle events went before a reader had read them: trimmed by `event_log_maxlen` or `event_log_max_age`, or
    with a stream that was deleted. The message names the queue, the first and the last of them and their number.
    Read sooner or keep more; `failOnDataLoss=false` goes on without them, and counts them.
    """


class NoEvents(CeleryRedisPlusError):
    """A queue has no lifecycle events to read. Switch the event log on (`event_log=True`) in the application; check
    the queue's name, the prefix and the database number.
    """


class TablesUnusable(CeleryRedisPlusError):
    """A folder of tables has not what was asked for: no such table yet, a damaged or newer manifest, or another
    process that is folding it. The message names the folder and what to run.
    """


class SparkJobFailed(CeleryRedisPlusError):
    """A Spark job failed; the message is what Spark's Python processes said, without the Java traces around it. See
    them with `--verbose`.
    """


class SparkUnavailable(CeleryRedisPlusError):
    """PySpark or Java is missing or too old. Install what the message names; everything that does not use Spark
    works without them.
    """


class MessageTooLarge(InvalidArgument):
    """A message is over 512 MB, the most that Redis stores in one value. It was not published. Store the data
    elsewhere and send its location.
    """


# --------------------------------------------------------------- broker family: what AMQP has reply codes for


class BrokerError(CeleryRedisPlusError):
    """Base of the errors that AMQP 0-9-1 has reply codes for. Catch it for all; each says what helps."""

    #: AMQP 0-9-1 reply code; kombu's errors carry it as `code`.
    reply_code: ClassVar[int] = 541


class QueueNotFound(BrokerError):
    """The queue does not exist, or expired. Declare it before using it."""

    reply_code = 404


class Unroutable(BrokerError):
    """No queue took the message: no binding matches, or the queue was transient and is gone. The message is
    not stored. Declare and bind the queue first.
    """

    reply_code = 312


class DeliveryNotFound(BrokerError):
    """Nothing is known of a tracked delivery of this id: it never existed, or its state was kept long enough. Ask sooner."""

    reply_code = 404


class AccessRefused(BrokerError):
    """A consumer cannot have the queue: another one consumes it exclusively, or this one wants to while others consume it. Cancel
    the other consumer first, or consume without `exclusive`.
    """

    reply_code = 403


class ResourceLocked(BrokerError):
    """The queue belongs to another connection, which declared it with `exclusive=True`: others may only publish to it, and it
    goes with that connection. Or it has a single active consumer, and cannot be asked for one message at a time. Use a queue of
    your own, or consume it.
    """

    reply_code = 405


class PreconditionFailed(BrokerError):
    """A queue or exchange exists already with other arguments. Declare it with the same ones, or delete it
    first.
    """

    reply_code = 406


class ChannelClosed(BrokerError):
    """The channel was closed before. Open a new one with `connection.channel()`."""

    reply_code = 504


class OutcomeUnknown(BrokerError):
    """A publish lost its reply and was retried later than `publish_dedup_window` allows, so nobody can tell
    whether the message was stored; sending it again might double it. Look whether it arrived, then decide.
    Retrying sooner, or a longer window, avoids this.
    """


# ------------------------------------------------------------------- no family: nobody but the caller can decide


class NotReplicated(CeleryRedisPlusError):
    """A publish is done: the message is stored, and consumers get it. But fewer replicas than `wait_replicas` asks
    for had it within `wait_replicas_timeout`, so a failover now might lose it. Neither kombu nor Celery tries
    again by itself; with `retry_errors`, their retry stores nothing and only asks the replicas again. Look after
    the replicas. Publishing the same message anew would store a second one.
    """

    def __init__(self, text: str, *, confirmed: int = 0, wanted: int = 0) -> None:
        """Say how many replicas have `confirmed` of those that were `wanted`."""
        super().__init__(text)
        #: How many replicas have the message, surely.
        self.confirmed = confirmed
        #: What `wait_replicas` asks for.
        self.wanted = wanted


# ---------------------------------------------------------------- refusal family: the queue does not take the message


class PublishRefused(CeleryRedisPlusError):
    """A queue did not take a message, and nothing of it is stored there. Catch it for every such reason; each says what
    helps. kombu and Celery do not try again by themselves: only the caller knows whether that makes sense.
    """


class MessageNotAccepted(PublishRefused, InvalidArgument):
    """A typed queue does not accept a message of this type. The message names the queue, what came and what the queue
    accepts. Publish to another queue, or correct the message.
    """


class QueueFull(PublishRefused):
    """A queue is at one of its limits (`x-max-length`, `x-max-length-bytes`, `x-max-pending`) and refuses more. The
    message is not in the queue; with `x-overflow: reject-publish-dlx` it is among the dead letters. Publish later, add
    consumers, or raise the limit.
    """


class PublishTimedOut(QueueFull):
    """A queue with `x-overflow: block` stayed full for `publish_timeout` seconds. Nothing is stored. Publish later, add
    consumers, or allow more time.
    """


class PublisherBlocksItself(QueueFull):
    """A queue with `x-overflow: block` is full, and only the publisher's own thread consumes it: waiting would never end.
    Nothing is stored. Run more than one thread or process (a solo worker must not publish into its own full queue), or
    raise the limit.
    """
