"""Many publishers against one limit: what they did, what became of every message, and how full the queue ever was."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import kombu

from celery_redis_plus.broker.dead_letters.store import DeadLetters
from tests.support.judge import records
from tests.support.judge.judging import assert_kept
from tests.support.judge.recorder import note
from tests.support.judge.records import History, Record
from tests.support.publishers import PublishingProcess

if TYPE_CHECKING:
    import redis

#: Reads both counts in one step, so that no publisher comes in between.
SAMPLE = "return { redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]) }"


#: What the consumer works on one message, in seconds.
WORK_S = 0.002


@dataclass
class Account:
    """What happened."""

    attempted: int = 0
    published: int = 0
    refused: int = 0
    acked: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    samples: int = 0
    most_waiting: int = 0
    most_pending: int = 0

    @property
    def kept(self) -> list[str]:
        return [*self.acked, *self.dead, *self.left]

    def __str__(self) -> str:
        return (
            f"attempted {self.attempted}, published {self.published}, refused {self.refused}, acked {len(self.acked)}, dead "
            f"{len(self.dead)}, left {len(self.left)}; at most {self.most_waiting} waiting, {self.most_pending} pending in "
            f"{self.samples} samples"
        )


class Sampler:
    """Looks at a queue's length as often as it can."""

    def __init__(self, client: redis.Redis, queue: str, account: Account) -> None:
        self._script = client.register_script(SAMPLE)
        self._keys = [f"queue:{{{queue}}}", f"delayed:{{{queue}}}", f"messages_index:{{{queue}}}"]
        self._account = account
        self._queue = queue
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        account = self._account
        while not self._stop.is_set():
            waiting, unacked = self._script(keys=self._keys)
            account.samples += 1
            if waiting > account.most_waiting or waiting + unacked > account.most_pending:
                note(records.DEPTH, queue=self._queue, detail={"waiting": waiting, "unacked": unacked})
            account.most_waiting = max(account.most_waiting, waiting)
            account.most_pending = max(account.most_pending, waiting + unacked)
            time.sleep(0.0005)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)


def run(
    client: redis.Redis, url: str, queue: str, arguments: dict[str, Any], publishers: int, each: int, *, consume: bool
) -> Account:  # fmt: skip
    """Let `publishers` processes publish `each` into a new queue, one slow consumer beside them; return the account."""
    account = Account(attempted=publishers * each)
    entity = kombu.Queue(queue, durable=True, queue_arguments=arguments)
    with kombu.Connection(url) as connection, ExitStack() as stack:
        channel = connection.channel()
        entity(channel).declare()

        def take(_body: Any, message: Any) -> None:
            # Slower than they publish: the limit has to be met.
            time.sleep(WORK_S)
            account.acked.append(message.payload)
            message.ack()

        with ExitStack() as consuming:
            if consume:
                consumer = consuming.enter_context(kombu.Consumer(channel, [entity], callbacks=[take]))
                consumer.qos(prefetch_count=7)
            # The sampler ends first: what a consumer has claimed and not delivered goes back at its end, into a full queue too.
            consuming.enter_context(Sampler(client, queue, account))
            processes = [stack.enter_context(PublishingProcess(url, queue, each, f"p{n}")) for n in range(publishers)]
            while any(process.running for process in processes):
                if consume:
                    try:
                        connection.drain_events(timeout=0.1)
                    except TimeoutError:
                        continue
                else:
                    time.sleep(0.05)
        for process in processes:
            outcome = process.outcome()
            account.published += outcome["published"]
            account.refused += outcome["refused"]
        letters = DeadLetters(channel.session.commands, channel.session.keys)
        account.dead = [json.loads(letter.body or b"") if quoted(letter.body) else (letter.body or b"").decode() for letter in
                        letters.all(queue)]  # fmt: skip
        while (message := channel.basic_get(queue)) is not None:
            account.left.append(message.payload)
            message.ack()
    return account


def quoted(body: bytes | None) -> bool:
    return body is not None and body[:1] == b'"'


def check(account: Account, overflow: str, limit: int, counted: str) -> None:
    """Assert what has to hold under each policy."""
    assert account.samples > 20
    depth = {"waiting": account.most_waiting, "unacked": account.most_pending - account.most_waiting}
    declared = Record(records.DECLARED, 0, queue="q", detail={counted: limit})
    assert_kept(History([declared, Record(records.DEPTH, 1, queue="q", detail=depth)]))
    assert len(account.kept) == len(set(account.kept)), f"doubled: {account}"
    assert account.published + account.refused == account.attempted
    kept, dead = len(account.kept), len(account.dead)
    if overflow == "reject-publish-dlx":
        assert dead == account.refused, str(account)
        assert kept == account.attempted, str(account)
    else:
        assert kept == account.published, str(account)
        assert (dead == 0) == (overflow != "drop-head"), str(account)
    if overflow in ("drop-head", "block"):
        assert account.refused == 0, str(account)
    else:
        assert account.refused > 0, f"nobody met the limit: {account}"
