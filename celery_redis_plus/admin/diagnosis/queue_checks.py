"""The checks of the queues: what waits without a consumer, behind a silent one, behind a pause, and what has died."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from operator import itemgetter
from shlex import quote
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, ResponseError

from celery_redis_plus.admin.diagnosis.finding import ADVICE, DANGER, OK, Finding
from celery_redis_plus.admin.diagnosis.naming import NAMED, named, operand
from celery_redis_plus.admin.formatting import span, visible
from celery_redis_plus.broker.consumers.pauses import Pausing
from celery_redis_plus.broker.consumers.processes import Processes
from celery_redis_plus.broker.consumers.registry import Consumers
from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.queues.listing import list_messages
from celery_redis_plus.connection.scans import scan_keys
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.keys import Keys, decode_name

if TYPE_CHECKING:
    from celery_redis_plus.admin.diagnosis.examined_broker import ExaminedBroker
    from celery_redis_plus.broker.consumers.processes import ProcessRecord
    from celery_redis_plus.broker.consumers.registry import ConsumerRecord
    from celery_redis_plus.broker.queues.overview import QueueOverview

#: For so long messages may wait without a consumer, and behind live ones, in seconds.
UNCONSUMED_S, BACKLOG_S = 60, 300
#: A pause without an end that is older is taken for a forgotten one, in seconds.
FORGOTTEN_PAUSE_S = 3_600
#: A process tells of its consumers every third of `consumer_heartbeat_timeout`: after this part of it, one is missing.
SILENT_PART = 0.6
#: Pages of keys among which other brokers are looked for: 100,000 keys.
SCANS = 100
#: Messages that are looked at to name the most frequent task.
SAMPLE = 100
#: The part of `dead_letter_max` from which on dead letters are about to be deleted.
NEARLY_EVICTED = 0.9


def unconverted(broker: ExaminedBroker) -> Iterator[Finding]:
    """Messages in kombu's own lists, or left by a killed migration."""
    found = [one for overview in broker.overviews for one in _unconverted(broker, overview.queue)]
    yield from named(sorted(found, key=lambda one: -one.values["messages"]))
    if not found:
        yield Finding("unconverted", OK, "no messages of kombu's own Redis transport for these queues")


def _unconverted(broker: ExaminedBroker, queue: str) -> Iterator[Finding]:
    keys = broker.kombu.keys
    lists = [*(keys.list_of(queue, step) for step in broker.kombu.steps), keys.moving(queue), broker.keys.queue(queue).leaving]
    lengths = broker.commands.pipeline([("LLEN", key) for key in lists])
    refused = next((reply for reply in lengths if isinstance(reply, NoPermissionError)), None)
    if refused is not None:
        raise refused
    # A key of another type is none of kombu's.
    *waiting, moving, leaving = (0 if isinstance(reply, ResponseError) else reply for reply in lengths)
    if any(waiting):
        text = f"{sum(waiting):,} message(s) for queue {queue!r} are in kombu's own lists"
        advice = "Give each process the scheme redisplus://, or call configure_app; then run `celery-redis-plus migrate`."
        yield Finding("unconverted", DANGER, text, advice, _of(queue, sum(waiting)))
    if moving:
        text = f"{moving:,} message(s) for queue {queue!r} are where an interrupted `migrate --from` has left them"
        advice = "Run the same `celery-redis-plus migrate --from` again: it goes on with them."
        yield Finding("unconverted", DANGER, text, advice, _of(queue, moving))
    if leaving:
        text = f"{leaving:,} message(s) of queue {queue!r} are where an interrupted `migrate --reverse --to` has left them"
        advice = "Run the same `celery-redis-plus migrate --reverse --to` again: it goes on with them."
        yield Finding("unconverted", DANGER, text, advice, _of(queue, leaving))


def consumers(broker: ExaminedBroker) -> Iterator[Finding]:
    """Lasting queues with messages and without a live consumer."""
    if not broker.overviews:
        yield _no_queues(broker)
        return
    lonely = [
        one for one in broker.overviews
        if not one.consumers and (one.ready or one.delayed) and one.queue in broker.lasting and one.queue != UNDELIVERED
    ]  # fmt: skip
    yield from named(map(_unconsumed, sorted(lonely, key=lambda one: -one.ready)))
    if not lonely:
        yield Finding("consumers", OK, "each queue with messages has a consumer")


def _no_queues(broker: ExaminedBroker) -> Finding:
    """Tell of a broker without queues: a new one, or another database or prefix than that of its workers."""
    db, prefix = broker.commands.connector.address.db, broker.keys.prefix
    counts = {int(name[2:]): int(text[5:].partition(",")[0]) for name, text in _databases(broker)}
    text = f"there is no queue under the prefix {prefix!r} in database {db}"
    if counts:
        text += f"; with keys: {', '.join(f'database {other} ({count:,})' for other, count in counts.items())}"
    others = _other_prefixes(broker)
    if others:
        text += f"; brokers in database {db} have the prefix {', '.join(map(repr, others[:NAMED]))}"
    advice = "If workers have run: give the database and the global_keyprefix that they use (--prefix)."
    return Finding("consumers", ADVICE, text, advice, {"database": db, "prefix": prefix, "keys": counts, "prefixes": others})


def _other_prefixes(broker: ExaminedBroker) -> list[str]:
    """Return the prefixes of other brokers in this database, among some of its keys."""
    name = Keys("").database_id
    scans = islice(scan_keys(broker.commands, b"*" + name), SCANS)
    found = {decode_name(key.removesuffix(name)) for page in scans for key in page}
    return sorted(found - {broker.keys.prefix})


def _databases(broker: ExaminedBroker) -> list[tuple[str, str]]:
    """Return the lines of INFO's section Keyspace, such as `db0` and `keys=5,expires=0`; none where INFO is refused."""
    try:
        info = broker.info
    except NoPermissionError:
        return []
    return [(name, text) for name, text in info.items() if name[:2] == "db" and name[2:].isdigit() and text.startswith("keys=")]


def _unconsumed(one: QueueOverview) -> Finding:
    waiting = f"{one.ready:,} ready and {one.delayed:,} delayed message(s)"
    since = f", for {span(one.oldest_s)}" if one.oldest_s is not None else ""
    level = DANGER if (one.oldest_s or 0) >= UNCONSUMED_S else ADVICE
    text = f"queue {one.queue!r} has {waiting}{since}, and no consumer"
    remedy = f"Start a worker with -Q {quote(one.queue)}. Is the name misspelt? `messages move ID --to QUEUE`."
    return Finding(
        "consumers", level, text, remedy,
        {"queue": one.queue, "ready": one.ready, "delayed": one.delayed, "oldest_s": one.oldest_s},
    )  # fmt: skip


def silent(broker: ExaminedBroker) -> Iterator[Finding]:
    """Consumers whose process, frozen or cut off, tells nothing of them."""
    now = datetime.fromtimestamp(server_ms(broker.commands) / 1000, UTC)
    limit_s = SILENT_PART * broker.options.consumer_heartbeat_timeout
    registry = Consumers(broker.commands, broker.keys)
    records = (record for one in broker.overviews if one.consumers for record in registry.list(one.queue))
    found = [(now - record.last_heard, record) for record in records]
    missed = [(age.total_seconds(), record) for age, record in found if age.total_seconds() > limit_s]
    yield from named(_silent(age, record) for age, record in sorted(missed, key=itemgetter(0), reverse=True))
    if not missed:
        yield Finding("silent", OK, f"{len(found):,} consumer(s), none has missed a heartbeat")


def _silent(age_s: float, record: ConsumerRecord) -> Finding:
    where = f"{record.host}, process {record.pid}"
    text = f"a consumer of queue {record.queue!r} on {where}, is silent for {span(age_s)} and holds {record.held:,} message(s)"
    advice = "Look at that process: if it is frozen, end it. Its messages go to other workers within connection_lost_grace."
    values = {"queue": record.queue, "host": record.host, "pid": record.pid, "held": record.held, "silent_s": round(age_s, 1)}
    return Finding("silent", DANGER if record.held else ADVICE, text, advice, values)


def maintenance(broker: ExaminedBroker) -> Iterator[Finding]:
    """Processes with a maintenance task that fails."""
    processes = Processes(broker.commands, broker.keys, delivery_limit=None, dead_letter_max=0).all()
    found = [(record, task, error) for record in processes for task, error in sorted(record.failing.items())]
    yield from named(_failing(*one) for one in found)
    if not found:
        yield Finding("maintenance", OK, f"{len(processes):,} consuming process(es), no maintenance task fails")


def _failing(record: ProcessRecord, task: str, error: str) -> Finding:
    text = f"the maintenance task {task} of {record.host}, process {record.pid}, fails: {visible(error)}"
    advice = "Look into that process's log: a refusal names what to allow; anything else is a defect, please report it."
    values = {"task": task, "host": record.host, "pid": record.pid, "error": error}
    return Finding("maintenance", DANGER, text, advice, values)


def backlog(broker: ExaminedBroker) -> Iterator[Finding]:
    """Queues with consumers whose messages wait for long, with the most frequent task."""
    long = [one for one in broker.overviews if one.consumers and one.paused is None and (one.oldest_s or 0) >= BACKLOG_S]
    yield from named(_backlog(broker, one) for one in sorted(long, key=lambda one: -(one.oldest_s or 0)))
    if not long:
        yield Finding("backlog", OK, f"no message waits for {span(BACKLOG_S)} at a live consumer")


def _backlog(broker: ExaminedBroker, one: QueueOverview) -> Finding:
    messages = list_messages(broker.commands, broker.keys, one.queue, "ready")
    task = _most_frequent(message.task for message in islice(messages, SAMPLE))
    text = f"messages of queue {one.queue!r} wait for {span(one.oldest_s)}: {one.ready:,} ready, {one.consumers} consumer(s)"
    advice = "Start more workers, or move what is not urgent: `messages move --queue QUEUE --task TASK --to OTHER`."
    values = {"queue": one.queue, "ready": one.ready, "oldest_s": one.oldest_s, "consumers": one.consumers}
    return Finding("backlog", ADVICE, text + task, advice, values)


def pauses(broker: ExaminedBroker) -> Iterator[Finding]:
    """Paused queues."""
    paused = [one for one in broker.overviews if one.paused is not None]
    yield from named(_pause(broker, one) for one in sorted(paused, key=lambda one: -one.ready))
    if not paused:
        yield Finding("pauses", OK, "no queue is paused")


def _pause(broker: ExaminedBroker, one: QueueOverview) -> Finding:
    pause = Pausing(broker.commands, broker.keys).paused(one.queue)
    since_s = None if pause is None else max(0.0, server_ms(broker.commands) / 1000 - pause.since.timestamp())
    end = f"until {one.paused_until:%Y-%m-%d %H:%M:%S} UTC" if one.paused_until else "without an end"
    text = f"queue {one.queue!r} is paused for {span(since_s)}, {end}: {one.paused!r}; {one.ready:,} ready message(s) wait"
    forgotten = one.paused_until is None and (since_s or 0) >= FORGOTTEN_PAUSE_S
    values = {"queue": one.queue, "reason": one.paused, "since_s": since_s, "until": one.paused_until, "ready": one.ready}
    return Finding("pauses", DANGER if forgotten else ADVICE, text, f"If it is over: `resume {operand(one.queue)}`.", values)


def dead_letters(broker: ExaminedBroker) -> Iterator[Finding]:
    """Dead letters, with the most frequent task; whether the oldest will soon be deleted."""
    dead = [one for one in broker.overviews if one.dead]
    yield from named(_dead_letters(broker, one) for one in sorted(dead, key=lambda one: -one.dead))
    if not dead:
        yield Finding("dead-letters", OK, "no dead letters")


def _dead_letters(broker: ExaminedBroker, one: QueueOverview) -> Finding:
    letters = DeadLetters(broker.commands, broker.keys).page(one.queue, max(0, one.dead - SAMPLE), SAMPLE)
    task = _most_frequent((letter.task for letter in letters), "youngest")
    kept = broker.options.dead_letter_max
    text, level = f"{one.dead:,} dead letter(s) in queue {one.queue!r}", ADVICE
    if one.queue == UNDELIVERED:
        text = f"{one.dead:,} message(s) reached no queue"
    if one.dead >= NEARLY_EVICTED * kept:
        text, level = f"{text}, of {kept:,} that are kept: the oldest are deleted", DANGER
    advice = f"See `dead-letters list {operand(one.queue)}`; then replay or delete them."
    return Finding("dead-letters", level, text + task, advice, {"queue": one.queue, "dead": one.dead, "dead_letter_max": kept})


def _most_frequent(tasks: Iterable[str | None], which: str = "next") -> str:
    counts = Counter(task for task in tasks if task)
    if not counts:
        return ""
    ((task, count),) = counts.most_common(1)
    return f"; of the {which} {counts.total()}, {count} are of task {visible(task)}"


def _of(queue: str, count: int) -> dict[str, Any]:
    return {"queue": queue, "messages": count}
