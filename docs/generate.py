"""Writes the pages that are made from what the code knows; `--check` only says whether they are current."""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from argument_descriptions import OF_CONSUMERS, OF_EXCHANGES, OF_MESSAGES, OF_QUEUES
from benchmark_figures import figures_in
from reference_pages import api_page, commands_page

from celery_redis_plus import errors, events, options
from celery_redis_plus.access_rules import ROLES
from celery_redis_plus.admin.diagnosis.checks import CHECKS
from celery_redis_plus.admin.diagnosis.queue_checks import (
    BACKLOG_S,
    FORGOTTEN_PAUSE_S,
    NAMED,
    NEARLY_EVICTED,
    SILENT_PART,
    UNCONSUMED_S,
)
from celery_redis_plus.admin.diagnosis.response_checks import (
    CLOCK_ADVICE_S,
    CLOCK_DANGER_S,
    LATENCY_ADVICE_MS,
    LATENCY_DANGER_MS,
)
from celery_redis_plus.admin.diagnosis.server_checks import CLIENTS_ADVICE, CLIENTS_DANGER, MEMORY_ADVICE, MEMORY_DANGER
from celery_redis_plus.broker.arguments.argument_rules import ALLOWED, WITHDRAWN
from celery_redis_plus.broker.arguments.deduplication import ID, SCOPE, TTL
from celery_redis_plus.broker.integrity import RULES
from celery_redis_plus.cli.metric_descriptions import GAUGES, HISTOGRAMS, LABELS, PREFIX, QUEUE_COUNTERS
from celery_redis_plus.integration.ack_policies import ENDINGS, POLICIES
from celery_redis_plus.integration.worker_metrics import WORKER_PREFIX
from celery_redis_plus.key_descriptions import DESCRIPTIONS, SECTIONS
from celery_redis_plus.record_fields import COUNTERS, FANOUT_COUNTERS, NOW, PROCESS_COUNTERS, PROCESS_GAUGES
from celery_redis_plus.script_headers import writers
from celery_redis_plus.spark.option_parsing import options_table
from celery_redis_plus.spark.sink_options import SinkOptions
from celery_redis_plus.spark.source_options import SourceOptions
from celery_redis_plus.transport.arguments import CONSUMER_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).parent
NOTE = "<!-- Made by docs/generate.py; change the code instead. -->\n"

OPTIONS_INTRO = """# Options

Set options as `broker_transport_options` in Celery, as `transport_options` in kombu, or in the URL's query. An unknown name, or a
value that is not allowed, raises an error. Durations are in seconds.

Options of other Redis clients that mean nothing here are accepted, and logged once, such as `priority_steps` and `sep`.
`max_connections` is one of them: a connection of kombu has at most four sockets, and there is no pool to exhaust. So is
`protocol`, since the replies to RESP 2 and 3 are the same here.

| option | type | default | unit | allowed | what it does |
|---|---|---|---|---|---|
"""

ARGUMENTS_INTRO = """# Arguments

All arguments that have an effect, of queues, consumers, messages, exchanges and bindings. Names and meanings are RabbitMQ's where
it has them. Another value than the allowed ones raises `InvalidArgument`. An argument without effect here is refused where work
would go wrong without it, else a warning names it once ([first steps](usage.md)).
"""

ERRORS_INTRO = """# Errors

Every error of this package is a `CeleryRedisPlusError`. Temporary errors belong to the families on which Celery and kombu try
again. A `BrokerError` is also kombu's `ChannelError`, and the class of py-amqp for its code, if there is one: `QueueNotFound` is
an `amqp.exceptions.NotFound`.

| error | cause and remedy |
|---|---|
"""


ACCESS_INTRO = """# Access rules

The rights that each role needs on the server, and no others. They are read from the scripts and from what Python sends. A test
runs a part of the integration suite with them, in which the server may refuse nothing.

With the option `global_keyprefix`, write it before the `*` of `~*`, and before each key of the reader. Then apps with different
prefixes cannot touch each other's keys. `ROLES[0].rule("shop:")` of `celery_redis_plus.access_rules` is the first rule for the
prefix `shop:`.

A monitor can change nothing. A reader sees the event log only; with `event_log_payload` that has the arguments of tasks. A
publisher needs commands that change keys, because scripts call them: its user can also remove messages with commands of its own.
With `client|list` a worker sees the addresses of all clients. Remote control needs the rights of a worker: it consumes replies.

Celery's result backend needs rights of its own. A Sentinel has users of its own: ours needs `+sentinel|get-master-addr-by-name
+sentinel|master +client|setname +client|setinfo` there. On [Redis Cluster](topologies.md#redis-cluster) each role needs
`+cluster|slots +cluster|nodes`, too.

Redis 7.0 does not know `client|setinfo`: leave it out of the rules there.

| role | for |
|---|---|
"""

EVENTS_INTRO = f"""# Lifecycle events

Schema version {events.SCHEMA_VERSION}. The scripts write an event in the same atomic step as the change that it describes, to one
stream a queue, `events:{{Q}}`. Redis stores the columns packed into one value; this page lists them as readers see them.
`celery_redis_plus/events.py` has the encoding.
"""

COLUMN_TYPES = {
    "text": "text",
    "int": "32-bit integer",
    "long": "64-bit integer",
    "us": "timestamp, UTC",
    "ms": "timestamp, UTC",
    "bytes": "bytes",
}


def options_page() -> str:
    """Return the page of all transport options."""
    rows = ((f"`{name}`", kind, f"`{default}`", *rest) for name, kind, default, *rest in options.table())
    return OPTIONS_INTRO + "".join(table_row(*row) for row in rows)


def arguments_page() -> str:
    """Return the page of the arguments of queues, consumers, messages, exchanges and bindings."""
    described = (set(OF_QUEUES), set(OF_CONSUMERS), {name for name in OF_MESSAGES if name.startswith(ID.removesuffix("id"))})
    known = (set(ALLOWED), set(CONSUMER_ARGUMENTS), {ID, TTL, SCOPE})
    if described != known:
        raise SystemExit(f"docs/argument_descriptions.py has {described}, and the code knows {known}")
    tables = {
        "Queues": {name: (ALLOWED[name], doc) for name, doc in OF_QUEUES.items()},
        "Consumers": OF_CONSUMERS,
        "Headers of messages": OF_MESSAGES,
        "Exchanges and bindings": OF_EXCHANGES,
    }
    parts = [ARGUMENTS_INTRO]
    for title, table in tables.items():
        parts += [f"\n## {title}\n\n", table_head("name", "allowed", "what it does")]
        parts += [table_row(f"`{name}`", *cells) for name, cells in table.items()]
    parts += ["\n## Withdrawn\n\n", table_head("name", "instead")]
    parts += [table_row(f"`{name}`", instead) for name, instead in WITHDRAWN.items()]
    return "".join(parts)


def errors_page() -> str:
    """Return the page of all error classes, in the order of their definition."""
    classes = [
        member
        for _, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, errors.CeleryRedisPlusError) and member.__module__ == errors.__name__
    ]
    classes.sort(key=lambda member: inspect.getsourcelines(member)[1])
    return ERRORS_INTRO + "".join(table_row(f"`{member.__name__}`", inspect.getdoc(member) or "") for member in classes)


def events_page() -> str:
    """Return the page of the event schema and of the state machine."""
    columns = (table_row(f"`{column.name}`", COLUMN_TYPES[column.kind], column.doc) for column in events.EVENT_COLUMNS)
    changes = (
        table_row(f"`{change.event}`", ", ".join(change.sources), change.target, change.doc)
        for change in events.TRANSITIONS.values()
    )
    return "".join(
        (
            EVENTS_INTRO,
            "\n## Events and transitions\n\n",
            table_head("event", "from", "to", "meaning"),
            *changes,
            "\n## Columns\n\n",
            table_head("column", "type", "meaning"),
            *columns,
            "\n## Reasons\n\n",
            table_head("reason", "on which event, and what it means"),
            *(table_row(f"`{reason}`", doc) for reason, doc in events.REASONS.items()),
            "\n## The hash `events_meta:{Q}`\n\n",
            table_head("field", "meaning"),
            *(table_row(f"`{field}`", doc) for field, doc in events.META_FIELDS.items()),
        )
    )


CHECK_INTRO = """# Checking a broker

`celery-redis-plus check` checks a broker against the rules below and prints a line for each violation. Workers and publishers
may run at the same time: a script checks each message within one atomic step. Data in several slots (lists, records, bindings)
is checked twice. One script call checks `--batch` messages (100 by default), at about 20 µs of server time each.

```bash
celery-redis-plus check --url redis://localhost:6379/0
celery-redis-plus check --url redis://localhost:6379/0 --prefix shop: --queue orders --json
celery-redis-plus check --url redis://localhost:6379/0 --repair
```

| exit status | meaning |
|---|---|
| 0 | no violation was found |
| 1 | violations were found; `--repair` repairs those that can be repaired, and a second run returns 0 |
| 2 | the check could not run |

Without `--url` it uses the environment's `CELERY_BROKER_URL`. Transport options may be part of the URL. If the application sets
`priority_order=low-first`, the URL must have it too. No repair loses a message: a tag is removed only if it has no message.

"""


def check_page() -> str:
    """Return the page of the check and its rules."""
    rows = (table_row(f"`{name}`", rule.meaning, rule.repair or "none: examine it") for name, rule in RULES.items())
    return CHECK_INTRO + table_head("rule", "violation", "action of `--repair`") + "".join(rows)


SPARK_INTRO = """# Options of the Spark formats

[The data pipeline](spark.md) explains their use. Names are case-insensitive. An unknown name, or a value that is not allowed,
raises an error.
"""


def spark_options_page() -> str:
    """Return the page of the options of source and sink."""
    return SPARK_INTRO + "".join(
        f"\n## {title}\n\n"
        + table_head("option", "allowed", "default", "unit", "what it does")
        + "".join(
            table_row(f"`{name}`", allowed, f"`{default}`" if default else "", unit, doc)
            for name, allowed, default, unit, doc in options_table(kind)
        )
        for title, kind in (("Source `celery_redis`", SourceOptions), ("Sink `celery_task`", SinkOptions))
    )


ACK_POLICIES_INTRO = """# Ack policies

An ack policy decides about a message when its task ends. Without a policy, Celery's settings `acks_late`,
`acks_on_failure_or_timeout` and `reject_on_worker_lost` decide. A policy is set for a task, a queue or the app. A task's policy
overrides the queue's, and that one the app's:

```python
from celery import Celery
from celery_redis_plus import configure_app

app = Celery("shop", broker="redisplus://localhost:6379/0")
configure_app(app, ack_policy="ack_after", queue_ack_policies={"orders": "reject_on_error"})


@app.task(ack_policy="nack_on_error")
def bill(order): ...
```

* `ack` removes the message. Its event `acked` records the outcome of the task.
* `reject` makes it a dead letter.
* `requeue` delivers it again, under the queue's [retry policy](lifecycle.md#retry-policies) or after a
  [wait](lifecycle.md#requeue). This counts as a failed delivery towards the [delivery
  limit](dead-letters.md#the-delivery-limit), except for `Reject(requeue=True)`.

With `ack_first` the message is acked before the task begins, with any outcome. If the worker is killed within a few
milliseconds of that, the ack may not have been sent, and another worker runs the task. With the others, a kill repeats the
running tasks, and those that ended in the last millisecond before it. With `manual` only the task decides: to finish a
message it raises `Ignore` or `Reject`.

"""


ACK_POLICIES_END = """
## Settle inside the task

A running task can settle its own message, before it ends. Its message must not be acked before that: set `acks_late=True`, or a
policy other than `ack_first`.

```python
import celery_redis_plus as crp
from celery import Celery
from celery_redis_plus import configure_app

app = configure_app(Celery("shop", broker="redisplus://localhost:6379/0"))


@app.task(acks_late=True)
def charge(order, card):
    if card == "":
        crp.reject("no card")
    elif card == "busy":
        crp.nack(delay=30)
    else:
        crp.ack()
```

* `ack()` removes the message. Its event is `acked`, without a reason.
* `nack(delay=…)` delivers it again: after `delay` seconds, or else as a policy's `requeue`. It is a failed delivery, so the
  delivery limit and the end of the retry policy hold.
* `reject(reason=…)` makes it a dead letter. Its `error` is `Reject: ` and the reason.

The call settles the message at once, in every pool. In a process of a prefork pool, the worker's main process does it, some
milliseconds later. The task goes on, and nothing of what it does then settles the message again:

| the task then | after `ack()` | after `nack()` | after `reject()` |
|---|---|---|---|
| returns, or raises Ignore or Reject | it stays acked | it is delivered again | it stays a dead letter |
| raises another exception | it stays acked; an event `failed` follows | it is delivered again | it stays a dead letter |
| raises Retry | the new message of the retry runs | both run: the new message, and this one again | the new message runs |
| meets its time limit, or its process dies | as with an exception | it is delivered again | it stays a dead letter |
| dies with its worker | it does not run again | it is delivered again | it stays a dead letter |
| calls one of the three again | `NotSettled` | `NotSettled` | `NotSettled` |

The event `failed` has the exception, and the message reads FAILED then. After `nack()` another worker may begin the message while
this task still runs. The result backend has what the task returns or raises, whatever it said before. A kill of the worker within
milliseconds of the call may lose the call: then the message is delivered again.

A task may lose its message while it runs: by [`x-consumer-timeout`](consumers.md#consumer-timeout), or after a connection loss.
The message waits in its queue then, or another consumer has it:

| after the loss, the task | in the task | the message |
|---|---|---|
| calls `ack()`, or its end acks | returns | It is removed. Another consumer's task runs on, and settles nothing. |
| calls `nack()` or `reject()` | `NotSettled`; in prefork, a warning of the worker | It stays: its next consumer decides. |

After a refused `nack()` or `reject()` nothing that the task does settles the message, not even its end.

Before the worker has heard of the loss, `nack()` and `reject()` return in each pool, and change nothing either.

`NotSettled` also ends a call outside a task, in another thread than the task's, in a task that runs eagerly (`task.apply()`), and
in a task with early acks. A broadcast is settled for its subscriber alone, and `nack` takes no `delay` there.
"""


def ack_policies_page() -> str:
    """Return the page of the ack policies."""
    rows = (
        table_row(f"`{ending}`", doc, *(table.get(ending, "ack") for table in POLICIES.values()))
        for ending, doc in ENDINGS.items()
    )
    head = table_head("ending", "event", *(f"`{policy}`" for policy in POLICIES))
    return ACK_POLICIES_INTRO + head + "".join(rows) + ACK_POLICIES_END


DATA_INTRO = """# Data in Redis

This page lists every key on the server. `Q` means a queue, `X` an exchange, `/0.` the `fanout_prefix` with the database's
number. The option `global_keyprefix` is prepended to every key; on Redis Cluster it has a hash tag, so that all keys share a
slot. The queue in braces would do the same for each queue. In a queue's name a leading `}` or `%` is escaped (`%7D`, `%25`).

A **tag** identifies a message: 11 hexadecimal digits of server time (ms), 8 of the queue's count of publishes, one character, and
the queue's id in base 36. The character says whether the queue has limits and the message events: `.` neither, `~` limits, `-`
events, `=` both.

A message is in exactly one **place**: ready (`queue:{Q}`), delayed (`delayed:{Q}`), unacked (`messages_index:{Q}`),
or dead (`dlx_outbox:{Q}`, `dead:{Q}`). [The states of a message](states.md) has the script of each change.
`celery-redis-plus check` checks the keys [against the rules](check.md).

"Empty queue" says whether the key exists for a declared lasting queue that never had a message, a binding or a consumer. Redis
removes sets without members. "Written by" names the scripts in `lua/` that may write the key, and other commands.

Sources of this page: `celery_redis_plus/keys.py` spells the keys, `celery_redis_plus/key_descriptions.py` and
`celery_redis_plus/record_fields.py` describe them, and the headers of the scripts name the writers.
"""


def data_page() -> str:
    """Return the page of all keys on the server."""
    parts = [DATA_INTRO]
    for title, descriptions in SECTIONS.items():
        parts += [f"\n## {title}\n\n", table_head("key", "type", "content", "lives", "empty queue", "written by")]
        for one in descriptions:
            written_by = [f"`{name}`" for name in writers(one)]
            written_by += [one.plain_writers] if one.plain_writers else []
            empty = "yes" if one.of_empty_queue else "no"
            parts.append(table_row(f"`{one.pattern}`", one.type, one.content, one.lives, empty, ", ".join(written_by)))
    for one in DESCRIPTIONS:
        if one.fields:
            parts += [f"\n## Fields of `{one.pattern}`\n\n", table_head("field", "meaning")]
            parts += [table_row(f"`{name}`", meaning) for name, meaning in one.fields.items()]
    return "".join(parts)


COUNTERS_INTRO = """# Counters

`celery_redis_plus.counters(queue, connection=app)` reads a queue's counters in one round trip. `celery-redis-plus counters`
prints them. The server counts in the fields of [the queue's record](data.md), from its declaration to its deletion.
"""


def counters_page() -> str:
    """Return the page of all counters."""
    sections = (
        ("Counters of a queue", COUNTERS),
        ("Further values of `counters`", NOW),
        ("Counters of a fanout exchange", FANOUT_COUNTERS),
        ("Counters of a queue's events", {name: events.META_FIELDS[name] for name in ("skipped", "overrun")}),
        ("Counters of a process", PROCESS_COUNTERS),
    )
    return COUNTERS_INTRO + "".join(
        f"\n## {title}\n\n"
        + table_head("counter", "meaning")
        + "".join(table_row(f"`{name}`", meaning) for name, meaning in table.items())
        for title, table in sections
    )


METRICS_INTRO = """# Metrics

`celery-redis-plus exporter` serves metrics of the queues to [Prometheus](https://prometheus.io/). It needs the extra `metrics`:

```bash
pip install ".[metrics]"
celery-redis-plus --app shop exporter
celery-redis-plus --broker redis://localhost:6379/0 exporter --host 0.0.0.0 --port 9808 'shop.*'
```

One process for a broker is enough. At each scrape it makes two round trips a queue and one a fanout exchange; none blocks the server. The page `/metrics`
needs no login, so the command listens on `127.0.0.1` unless `--host` names another address. [The command
line](command-line.md#connection) has the connection options.

If the broker cannot be reached, the scrape succeeds with `celery_redis_plus_up 0`. The next scrape tries again. A queue that is
deleted disappears from the metrics. Its counters begin at 0 when it is declared again.

To let Prometheus scrape it:

```yaml
scrape_configs:
  - job_name: celery-redis-plus
    static_configs:
      - targets: ["127.0.0.1:9808"]
```

Examples of alerts:

| alert | expression |
|---|---|
| messages wait for more than five minutes | `celery_redis_plus_queue_oldest_ready_seconds > 300` |
| dead letters | `celery_redis_plus_queue_messages{state="dead"} > 0` |
| messages wait, and there is no consumer | `celery_redis_plus_queue_messages{state="ready"} > 0 and on(instance, queue) celery_redis_plus_queue_consumers == 0` |
| a forgotten pause | `celery_redis_plus_queue_paused == 1` for a day |
| the broker is away | `celery_redis_plus_up == 0` |
| dead letters were deleted because there are too many | `increase(celery_redis_plus_queue_dead_evicted_total[1h]) > 0` |
| the server has evicted messages | `increase(celery_redis_plus_queue_vanished_total[1h]) > 0` |

## Latencies

`exporter --latencies` makes two histograms of the [event logs](lifecycle.md), from the start of the exporter on: how long messages wait
until a consumer has them, and how long work on them takes. A queue without an event log has none. With `event_log_sample` they have
the sampled messages only. A scrape reads up to 50,000 events a queue, 500 in a call.

## Grafana

[grafana-dashboard.json](grafana-dashboard.json) is a dashboard with queue lengths, ages, rates, consumers, dead letters, latencies and
broadcasts, and with late heartbeats, reconnects, recoveries and held messages of each [worker](#in-a-worker). Import it in Grafana under *Dashboards, New, Import*, and choose the Prometheus data source.

## In a worker

A worker serves metrics of itself, if the option `metrics_port` has a port: sweeps, recovered and redelivered messages, reconnects, late
heartbeats, how far it is behind its broadcasts. This takes the extra `metrics`, and no round trip.

```python
from celery import Celery

app = Celery("shop", broker="redisplus://localhost:6379/0")
app.conf.broker_transport_options = {"metrics_port": 9809, "metrics_host": "0.0.0.0"}
```

The worker's main process serves them, also with a prefork pool: the connection and the maintenance are there, and the processes of the
pool have neither. Workers of one machine need different ports: give each its own `-A` settings, or the port in its URL
(`redisplus://localhost:6379/0?metrics_port=9810`). A worker that cannot listen logs an error and works without metrics. The queues
are the exporter's: it serves them once for all workers.

## Flower and celery-exporter

[Flower and celery-exporter](flower.md) show the queues of this broker as well.

## Kubernetes

[Scaling and Kubernetes](kubernetes.md#scaling-by-queue-length) has the examples for KEDA and the autoscaler.

## Traces

[OpenTelemetry's instrumentation of Celery](https://opentelemetry-python-contrib.readthedocs.io/en/latest/instrumentation/celery/celery.html)
works as it is. The publisher's span is the parent of the task's span: the context is in the message's headers. They stay with a message
that is delayed, retried, put back, moved, dead or replayed, and with a broadcast.

The transport writes no spans of its own. How long a task waits is the time between the two spans: `apply_async` and `run`. What became of
its message tell [the events](lifecycle.md), and how long messages wait in all the histograms of `exporter --latencies`.
"""  # noqa: E501 - a row of a table is one line


DOCTOR_INTRO = """# Doctor

`celery-redis-plus doctor` examines the server and the queues, and tells what is wrong or soon will be. It changes nothing. No
call takes the server more than a few milliseconds.

```bash
celery-redis-plus --app shop doctor
celery-redis-plus doctor --role worker --json
celery-redis-plus doctor --check consumers --check pauses
```

| level | meaning |
|---|---|
| `ok` | nothing to do |
| `advice` | it works, and something should be changed |
| `danger` | messages are lost, doubled, stuck or refused, now or with the next fault |
| `unknown` | the user may not ask, or the server does not tell |

How much a crash of the server's machine or a failover may lose is a choice. `doctor` grades it: up to the last second is `ok`
(`appendfsync everysec`, replicas), the last half minute is `advice` (`appendfsync no`), more is `danger` (only snapshots, or
nothing on disk).

The exit status is 1 if there is danger, else 0. `--json` prints one object a finding: `check`, `level`, `text`, `advice`, and
`values` with the figures. `--role` names a role of [the access rules](access.md): the user must have its rights. Without it the
check `rights` tells which roles the user can play.

Providers often refuse `CONFIG`, and the role `monitor` has no right to it. Then the settings of persistence are unknown,
and how many replicas `min-replicas-to-write` wants. The other checks are made.

## The checks

"""


def doctor_page() -> str:
    """Return the page of the checks of `doctor`."""
    rows = (table_row(f"`{name}`", inspect.getdoc(check) or "") for name, check in CHECKS.items())
    return DOCTOR_INTRO + table_head("check", "looks at") + "".join(rows) + DOCTOR_LIMITS


#: Behind the table, from the code.
DOCTOR_LIMITS = f"""
## Limits

| finding | advice from | danger from |
|---|---|---|
| part of the memory in use | {MEMORY_ADVICE:.0%} | {MEMORY_DANGER:.0%} |
| part of the connections in use | {CLIENTS_ADVICE:.0%} | {CLIENTS_DANGER:.0%} |
| answer to a PING, p99 | {LATENCY_ADVICE_MS:.0f} ms | {LATENCY_DANGER_MS:.0f} ms |
| difference of the clocks | {CLOCK_ADVICE_S:.0f} s | {CLOCK_DANGER_S:.0f} s |
| messages without a consumer | at once | {UNCONSUMED_S} s |
| messages wait for live consumers | {BACKLOG_S} s | - |
| silence of a consumer | {SILENT_PART:.0%} of `consumer_heartbeat_timeout` | the same, if it holds messages |
| a pause without an end | at once | {FORGOTTEN_PAUSE_S // 60} min |
| dead letters | 1 | {NEARLY_EVICTED:.0%} of `dead_letter_max` |

Of each kind the first {NAMED} are named.
"""


def metrics_page() -> str:
    """Return the page of the exporter and its metrics."""
    gauges = (
        table_row(f"`{PREFIX}{name}`", "gauge", ", ".join(f"`{label}`" for label in LABELS.get(name, ("queue",))), meaning)
        for name, meaning in GAUGES.items()
    )
    counters = (
        table_row(f"`{PREFIX}{name}_total`", "counter", "`queue`", meaning) for name, (_, meaning) in QUEUE_COUNTERS.items()
    )
    histograms = (table_row(f"`{PREFIX}{name}`", "histogram", "`queue`", meaning) for name, meaning in HISTOGRAMS.items())
    head = table_head("metric", "type", "labels", "meaning")
    of_worker = (
        *(table_row(f"`{WORKER_PREFIX}{name}_total`", "counter", "", meaning) for name, meaning in PROCESS_COUNTERS.items()),
        *(table_row(f"`{WORKER_PREFIX}{name}`", "gauge", "", meaning) for name, meaning in PROCESS_GAUGES.items()),
    )
    return (
        f"{METRICS_INTRO}\n## The metrics of the exporter\n\n{head}{''.join((*gauges, *counters, *histograms))}"
        f"\n## The metrics of a worker\n\n{head}{''.join(of_worker)}"
    )


def table_head(*cells: str) -> str:
    """Return the head of a Markdown table."""
    return table_row(*cells) + "|" + "---|" * len(cells) + "\n"


def table_row(*cells: str) -> str:
    """Return a row of a Markdown table; what would break it is escaped."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |\n"


def access_page() -> str:
    """Return the page of the ACL rules."""
    text = ACCESS_INTRO + "".join(table_row(f"[{role.name}](#{role.name})", role.doc) for role in ROLES)
    for role in ROLES:
        rule = textwrap.fill(
            f"ACL SETUSER {role.name} on >PASSWORD {role.rule()}", 118, break_on_hyphens=False, subsequent_indent="  "
        )
        text += f"\n## {role.name}\n\n```text\n{rule}\n```\n"
    return text


PAGES: dict[str, Callable[[], str]] = {
    "options.md": options_page,
    "arguments.md": arguments_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "check.md": check_page,
    "data.md": data_page,
    "counters.md": counters_page,
    "doctor.md": doctor_page,
    "metrics.md": metrics_page,
    "spark-options.md": spark_options_page,
    "ack-policies.md": ack_policies_page,
    "access.md": access_page,
    "commands.md": commands_page,
    "api.md": api_page,
}


def main() -> int:
    """Write the pages, or check them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is not current")
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        file, text = DOCS / name, NOTE + page()
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                file.write_text(text, encoding="utf-8")
    for file in (DOCS.parent / "README.md", DOCS / "comparison.md", DOCS / "architecture.md"):
        text = file.read_text(encoding="utf-8")
        if (current := figures_in(text)) != text:
            stale.append(file.name)
            if not check:
                file.write_text(current, encoding="utf-8")
    if stale:
        print(f"{'not current' if check else 'written'}: {', '.join(stale)}")
    if stale and check:
        print("run: python docs/generate.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
