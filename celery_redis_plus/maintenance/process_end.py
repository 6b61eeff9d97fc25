"""Gives back what a process still holds when its interpreter exits, as a broker of AMQP does when it sees the sockets close.

Programs end without closing their connections: a script that consumes some messages, `celery migrate`, a worker whose pool
cannot be stopped. A process that is killed gets here never; its messages come back after the visibility timeout.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_redis_plus.broker.consumers.acks import Acknowledger
from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR, Consumers
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.maintenance.reconnect_recovery import ReconnectRecovery

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import UnackedMessages
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: Seconds that an answer of a broker may take at the end of the process.
END_ANSWER_S = 0.4
#: Seconds between two checks whether the maintenance thread has finished its current task.
END_POLL_S = 0.005


class ProcessEnd:
    """What is left to do on one broker."""

    def __init__(
        self, connector: Connector, keys: Keys, options: Options, unacked_messages: UnackedMessages, consumed: ConsumedQueues
    ) -> None:
        """Give back what stands in `unacked_messages`; the consumers in `consumed` are off their queues then."""
        self._address = connector.address
        self._keys = keys
        self._options = options
        self._unacked_messages = unacked_messages
        self._consumed = consumed
        #: The process gives back what it has: no thread that still runs may claim or deliver any more.
        self.begun = False

    def run(self, until: float) -> None:
        """Give everything back, `until` then at most, on the monotonic clock, in seconds. Never raises.

        In the thread that ends the process, since Python 3.12 starts none any more; and over a connection of its own, since
        another thread may wait for a reply with the maintenance thread's one.
        """
        if not (len(self._unacked_messages) or self._unacked_messages.waiting or len(self._consumed)) or time.monotonic() > until:
            return
        self.begun = True
        answer_s = min(END_ANSWER_S, self._options.socket_timeout or END_ANSWER_S)
        options = replace(self._options, socket_connect_timeout=answer_s, socket_timeout=answer_s)
        commands = CommandConnection(Connector(self._address, options), "exit", timeout=answer_s)
        # The maintenance thread shall not take it up meanwhile: it ends in the midst of anything.
        self._unacked_messages.on_work = lambda: None
        try:
            self._give_back(commands, until)
        except (RedisError, OSError, CeleryRedisPlusError) as error:
            held = len(self._unacked_messages)
            logger.log(
                logging.WARNING if held else logging.DEBUG,
                "%d message(s) come back after the visibility timeout: the process ends, and the broker is unreachable: %s",
                held, error,
            )  # fmt: skip
        finally:
            commands.abort()

    def _give_back(self, commands: CommandConnection, until: float) -> None:
        options = self._options
        acknowledger = Acknowledger(
            commands,
            self._keys,
            self._unacked_messages,
            dead_letter_max=options.dead_letter_max,
            delivery_limit=options.delivery_limit,
        )
        consumed = self._consumed.all()
        queues_of: dict[str, set[str]] = {}
        for queue in consumed:
            for user in queue.users:
                queues_of.setdefault(user.partition(CONSUMER_ID_SEPARATOR)[0], set()).add(queue.name)
        # Before others may claim: what goes back comes before what is newer.
        self._unacked_messages.give_back()
        for session, queues in queues_of.items():
            # A claim may be under way whose reply is not read any more.
            self._unacked_messages.abandon(session, queues)
        ReconnectRecovery(commands, self._keys, self._unacked_messages, acknowledger).run()
        consumers = Consumers(commands, self._keys)
        for queue in consumed:
            for consumer in queue.consumers:
                consumers.leave(queue.name, consumer.id)
        while self._unacked_messages.waiting and time.monotonic() < until:
            time.sleep(END_POLL_S)
