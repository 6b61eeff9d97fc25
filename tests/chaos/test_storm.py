"""The long run: workers, server and network fail at random while tasks run; nothing is lost, and every repeat has its reason.

`tox -e chaos -- --faults 200` lets so many faults strike each pool, `--seconds 600` spends so long on the storm, and
`--chaos-full` has counts for each kind, and many tasks; with `--tasks 0` they are published until the last fault only. The table
at the end is that of docs/design/0008-chaos.md.
"""

import os
import random
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.chaos.app import EARLY, STALLS_VARIABLE
from tests.chaos.crew import Crew
from tests.chaos.faults.kinds import PARTITIONS, draw, kinds_of
from tests.chaos.load.queues import ARGUMENTS, BINDINGS, CONSUMED, look
from tests.chaos.load.sources import Sources
from tests.chaos.servers import set_clock, stormy_server
from tests.chaos.state import check_invariants, empty, leftovers, places, remaining
from tests.chaos.storm import QUEUE, Storm
from tests.support.judge import recorder
from tests.support.judge.executions import Verdict, count, repeats_of
from tests.support.judge.promises.lateness import latest_s
from tests.support.judge.records import History
from tests.support.judge.rules import Rules
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

VISIBILITY_TIMEOUT_S = 5
WORKERS = 3
CONCURRENCY = 2
PREFETCH = CONCURRENCY * 4
#: Where messages without a recipient are kept.
UNDELIVERED = b"{celery_redis_plus.undelivered}"
POOLS = ["solo", "threads", "prefork"]
GREENLETS = [pytest.param(pool, marks=pytest.mark.long_storm) for pool in ("gevent", "eventlet")]
OPTIONS = {"visibility_timeout": VISIBILITY_TIMEOUT_S, "socket_timeout": 2, "socket_connect_timeout": 2}
#: Seconds under which a run by the clock strikes with the faults of the short form only.
SHORT_S = 60
SHORT_TASKS, FULL_TASKS = 1_500, 34_000
#: Seconds between two faults, on the average: where there are many, workers need some time to work at all.
REST_S, FULL_REST_S = 0.3, 1.2
#: Seconds within which one more task ends, after the last fault.
PATIENCE_S = 120
#: Seconds after its time, or after its consumer's death, within which a message is delivered whatever fails.
LATE_S = PATIENCE_S
RULES = Rules(acks=PREFETCH, strict=True, early=frozenset({EARLY}), late_s=LATE_S)
#: Repeats of tasks that had ended, for each kill of a worker (docs/design/0008-chaos.md).
ENDED_REPEATS = {"solo": 0.1, "threads": 0.1, "prefork": 0.4, "gevent": 0.1, "eventlet": 0.1}
#: In a short run a few are no proof of a rate.
ENDED_REPEATS_AT_LEAST = 2


def task_length(chooser):
    """Most tasks are short; some outlive any outage, and a few the visibility timeout."""
    part = chooser.random()
    if part < 0.95:
        return chooser.uniform(0, 0.003)
    if part < 0.99:
        return chooser.uniform(0.01, 0.05)
    if part < 0.9995:
        return chooser.uniform(0.2, 0.5)
    return VISIBILITY_TIMEOUT_S * 1.3


def schedule(pool, length, chooser, done):
    """Yield the faults of a run; `done` counts those that have struck."""
    if length.faults:
        # Not all of them find a worker that has no other fault.
        while done.total() < length.faults:
            yield from draw(pool, 1, chooser)
    elif length.seconds:
        until = time.monotonic() + length.seconds / len(POOLS)
        while time.monotonic() < until:
            yield from draw(pool, 1, chooser, short=length.seconds < SHORT_S)
    else:
        kinds = kinds_of(pool).items()
        faults = [name for name, kind in kinds for _ in range(kind.full if length.full else kind.short)]
        chooser.shuffle(faults)
        yield from faults


def account(repeats, storm):
    """What happened around these repeats."""
    lines = []
    for repeat in repeats:
        lines += ["", str(repeat.before), str(repeat.again)]
        since, until = repeat.before.start - VISIBILITY_TIMEOUT_S * 2, repeat.again.start + 1
        lines += [f"  {at:.3f} {text}" for at, _, text, _ in storm.diary if since <= at <= until]
    return "\n".join(lines)


def weather(storm, faults, rest_s, ledger):
    """Let all `faults` strike, and end when the last one is over."""
    for fault in faults:
        storm.strike(fault)
        time.sleep(random.uniform(0, 2 * rest_s))
        with storm.server.client(socket_timeout=0.2) as client:
            look(client)
        ledger.read()
        judge(storm)
    storm.calm()
    judge(storm)


def judge(storm):
    """Fail with the logs of workers that ended by themselves, and with what a fault met."""
    found = storm.crew.ended_by_themselves() + storm.failures
    assert not found, "\n\n".join(found)


def stuck(seed, missing, client, storm, ledger):
    """What is left where nothing more happens, what befell it, and what its workers say."""
    diary = "\n".join(f"  {at:.3f} {text}" for at, _, text, _ in storm.diary)
    logs = "\n\n".join(f"{member.life}:\n{member.worker.tail(40)}" for member in storm.crew.members)
    history = History.read(Path(os.environ[recorder.VARIABLE]), ledger.records())
    stories = "\n".join(f"  {record}" for name in missing[:5] for record in history.of_message(name))
    return f"seed {seed}, missing {missing[:20]}, {remaining(client, QUEUE)}\n{stories}\n{diary}\n\n{logs}"


def drain(client, names, ledger, message):
    """Wait until all tasks have ended and the queues are empty, as long as tasks end: with much load it takes its time."""

    def left():
        messages = sum(0 if empty(client, queue) else sum(places(client, queue).values()) for queue in CONSUMED)
        return len(names - set(ledger.ended())), messages

    now = left()
    while now != (0, 0):
        now = wait_until(lambda before=now: (after := left()) != before and after, PATIENCE_S, message, interval_s=0.1)


@pytest.mark.judged(**asdict(RULES))
@pytest.mark.parametrize("pool", [*POOLS, *GREENLETS])
def test_nothing_is_lost_whatever_fails(*, pool, storm_length, seed, tmp_path, ledger, chaos_app, chaos_worker, figures, tally):
    chooser = random.Random(seed)
    length = storm_length
    tasks = (FULL_TASKS if length.full else SHORT_TASKS) if length.tasks is None else length.tasks
    most = None if length.faults or length.seconds or not tasks else tasks // 2
    stalls = tmp_path / "stalls"
    stalls.mkdir()
    config = {
        "task_acks_late": True, "task_reject_on_worker_lost": True, "broker_transport_options": OPTIONS, "queues": ARGUMENTS,
        "bindings": BINDINGS,
    }  # fmt: skip

    def worker(url, clock):
        env = {STALLS_VARIABLE: str(stalls), **(clock.environment if clock else {})}
        times = {"visibility_timeout": VISIBILITY_TIMEOUT_S, "concurrency": CONCURRENCY}
        return chaos_worker(url, pool=pool, config=config, env=env, queues=CONSUMED, **times)

    def publisher_app(**options):
        times = {"visibility_timeout": VISIBILITY_TIMEOUT_S}
        return chaos_app(proxies[0].url(), queues=ARGUMENTS, bindings=BINDINGS, broker_transport_options=options, **times)

    with ExitStack() as stack:
        server_clock = set_clock(tmp_path / "server-clock", of_server=True)

        def make_server():
            return stack.enter_context(stormy_server(tmp_path, server_clock))

        first_server = make_server()
        proxies = [stack.enter_context(Proxy(lambda: storm.server.port)) for _ in range(WORKERS + 1)]
        clocks = [set_clock(tmp_path / f"clock{number}") for number in range(WORKERS)]
        crew = Crew(worker, proxies[1:], clocks)
        storm = Storm(
            first_server, crew, proxies[0], VISIBILITY_TIMEOUT_S, seed, make_server, server_clock=server_clock, stalls=stalls
        )  # fmt: skip
        crew.start()
        sources = Sources(storm, ledger, publisher_app, length=task_length, most=most)
        storm.behind = sources.behind
        sources.start()
        began = time.monotonic()
        weather(storm, schedule(pool, length, chooser, storm.done), FULL_REST_S if length.full else REST_S, ledger)
        sources.finish(at_once=most is None, timeout_s=PATIENCE_S)
        names = sources.names()
        with storm.server.client() as client:
            drain(client, names, ledger, lambda: stuck(seed, sorted(names - set(ledger.ended())), client, storm, ledger))
            took_s = time.monotonic() - began
            assert crew.stop() == [0] * WORKERS
            check_invariants(client)
            # A publish or broadcast finds no recipient where the server has just lost them.
            left = [key for key in leftovers(client) if not (storm.rollbacks and UNDELIVERED in key)]
            dead = places(client, QUEUE)["dead"]
    history = History.read(Path(os.environ[recorder.VARIABLE]), ledger.records())
    repeats = repeats_of(history, RULES)
    verdicts = count(repeats)
    tally.add(pool, storm, repeats)
    figures(
        f"seed {seed}, {took_s:.0f} s, {sum(storm.done.values())} faults of {len(storm.done)} kinds, "
        f"{len(names)} tasks published ({sources.features.sent} messages with features), {len(ledger.started())} executed, "
        f"lost {len(names - set(ledger.ended()))}, dead-lettered {dead}, "
        f"early tasks lost with their worker {len(sources.early_names() - set(ledger.ended()))}, "
        "latest {:.1f} s after an eta, {:.1f} s after a consumer, ".format(*latest_s(history))
        + f"partitions {sum(storm.done[name] for name in PARTITIONS)}; {dict(sorted(storm.done.items()))}; "
        f"repeats {sum(verdicts.values())}: " + ", ".join(f"{verdict.value} {number}" for verdict, number in verdicts.items())
    )
    assert storm.failures == []
    assert left == []
    illegal = [repeat for repeat in repeats if repeat.verdict is Verdict.ILLEGAL]
    assert illegal == [], account(illegal, storm)
    assert "please report it" not in "".join(member.worker.log() for member in crew.members)
    kills = storm.done["kill_worker"] + storm.done["kill_main"]
    assert verdicts[Verdict.LAST_ACKS] <= max(ENDED_REPEATS_AT_LEAST, ENDED_REPEATS[pool] * kills)
