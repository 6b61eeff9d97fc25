"""Moves the messages of one queue into another shard: each once, with its place, its tag and its history, in pages.

A page is taken out of the queue into a list (`lua/leave_shard.lua`), stored in the other shard under ids that a second call finds
again (`lua/enter_shard.lua`), and then forgotten here. So a kill between any two steps loses and doubles nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.keys import encode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.shards.dead_letters import KEPT_MS, STORE_WITHIN_MS
from celery_redis_plus.shards.replicated import call_replicated

if TYPE_CHECKING:
    from celery_redis_plus.shards.place import Place

#: Messages, and bytes, of one page: some 2 ms of a server's time.
PAGE: Final = 100
PAGE_BYTES: Final = 1_000_000
#: Milliseconds for which a queue with `x-expires` lives in its new shard at least, so that its consumers come there in time.
LIFE_MS: Final = 120_000


@dataclass(slots=True)
class QueueMove:
    """The move of one queue from one shard to another."""

    name: str
    source: Place
    target: Place

    def page(self) -> int:
        """Move a page of messages; return how many it had, 0 where none is left that no consumer has.

        Raises:
            TimeoutError: it took so long that another call may have moved them meanwhile, or fewer replicas than `wait_replicas`
                have them in the new shard; the next page begins with them.
            QueueNotFound: the queue was deleted in its new shard.
            redis.exceptions.RedisError: as `CommandConnection.call`.
        """
        source, target = self.source, self.target
        here, there = source.keys.queue(self.name), target.keys.queue(self.name)
        # In this order: what is seen here now was not moved before this moment.
        deadline_ms = server_ms(target.commands) + STORE_WITHIN_MS
        messages = source.commands.call(
            script("leave_shard"), [*here.state_keys, here.leaving_shard, here.leaving_message], PAGE, PAGE_BYTES
        )
        if not messages:
            return 0
        ids = [b"raise %d/%b" % (source.number, message[0]) for message in messages]
        arguments: list[Any] = []
        for move, (tag, place, score, *fields) in zip(ids, messages, strict=True):
            if fields:
                arguments += (move, tag, place, score, len(fields), *fields)
        if arguments:
            self._store([*there.state_keys, there.moved_in], deadline_ms, arguments)
        tags = [message[0] for message in messages]
        # In this order: what is in the list without a hash is stored.
        source.commands.command("UNLINK", *[here.leaving_message + tag for tag in tags])
        source.commands.command("HDEL", here.leaving_shard, *tags)
        for move in ids:
            target.commands.send_nowait(script("finish_move"), [there.moved_in], move, KEPT_MS)
        target.commands.read_until()
        return len(messages)

    def _store(self, keys: list[bytes], deadline_ms: int, arguments: list[Any]) -> None:
        call = (self.target.commands, script("enter_shard"), keys, deadline_ms, KEPT_MS, *arguments)
        reply = call_replicated(*call)
        if reply == b"NOQUEUE":
            # Somebody has deleted it there: its messages are not lost with that.
            self.target.queues.restore(self.name)
            reply = call_replicated(*call)
        if reply == b"LATE":
            raise TimeoutError(f"a page of queue {self.name!r} took too long; it is moved again")

    def close_source(self) -> None:
        """Let nobody publish here from now on: who finds no record looks for the number of shards, which is another.

        Consumers go on with what is here.
        """
        expires = self.source.commands.command("HEXISTS", self.source.keys.queue(self.name).meta, "expires")
        if expires:
            # A janitor would clear away what has no record any more.
            self.source.queues.registry.enlist(self.name, "")
        self._close(1)
        if expires:
            self._persist_source()

    def note_swept(self) -> None:
        """Note that the old place is swept now (`lua/close_place.lua`)."""
        self._close(0)

    def _close(self, closes: int) -> None:
        self.source.commands.call(script("close_place"), [self.source.keys.queue(self.name).meta], closes)

    def keep(self) -> None:
        """Keep a queue with `x-expires` in both shards: no consumer keeps it in the new one yet, nor a closed one in the old."""
        source, target = self.source, self.target
        if target.queues.touch_page(self.name, 0, LIFE_MS) >= 0 and target.commands.command(
            "HEXISTS", target.keys.queue(self.name).meta, "expires"
        ):
            source.queues.registry.enlist(self.name, "")

    def _persist_source(self) -> None:
        """Have nothing of the queue end by itself in its old shard."""
        here = self.source.keys.queue(self.name)
        ask = self.source.commands.ask
        ask([("PERSIST", key) for key in here.structure()])
        for key in (here.ready, here.held, here.delayed, here.index, here.dlx_outbox, here.dead):
            cursor = b"0"
            while True:
                cursor, flat = self.source.commands.command("ZSCAN", key, cursor, "COUNT", PAGE)
                ask([("PERSIST", here.message + tag) for tag in flat[::2]])
                if cursor == b"0":
                    break

    def left(self) -> tuple[int, int]:
        """Return how many messages are here that no consumer has, and how many consumers have."""
        here = self.source.keys.queue(self.name)
        *waiting, leaving, unacked = self.source.commands.ask(
            [
                *(("ZCARD", key) for key in (here.ready, here.held, here.delayed, here.dlx_outbox, here.dead)),
                ("HLEN", here.leaving_shard),
                ("ZCARD", here.index),
            ]
        )
        return sum(waiting) + leaving, unacked

    def forget_source(self) -> None:
        """Remove what an empty queue has left here."""
        here = self.source.keys.queue(self.name)
        self.source.queues.empty_trash(self.name)
        self.source.commands.command("UNLINK", *here.structure())
        self.source.commands.command("ZREM", self.source.keys.queues, encode_name(self.name))
