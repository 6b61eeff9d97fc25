"""Writes the pages that are made from what the code knows; `--check` only says whether they are current."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from argument_descriptions import OF_CONSUMERS, OF_EXCHANGES, OF_MESSAGES, OF_QUEUES
from benchmark_figures import WITH_FIGURES, figures_in
from data_pages import contract_page, data_page
from field_descriptions import EVENT_REASONS
from option_texts import option_texts
from reference_pages import administration_page, api_page, commands_page

from celery_redis_plus import errors, events
from celery_redis_plus.access_rules import ROLES
from celery_redis_plus.admin.diagnosis.checks import CHECKS
from celery_redis_plus.admin.diagnosis.naming import NAMED
from celery_redis_plus.admin.diagnosis.queue_checks import (
    BACKLOG_S,
    FORGOTTEN_PAUSE_S,
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
from celery_redis_plus.admin.diagnosis.work_checks import NEARLY_FULL, STUCK_S
from celery_redis_plus.broker.arguments.argument_rules import ALLOWED, STEERING
from celery_redis_plus.broker.arguments.deduplication import CONFLICT, DELAY, ID, MAX_WAIT, SCOPE, TTL
from celery_redis_plus.broker.arguments.limiters import LIMITER
from celery_redis_plus.broker.arguments.names import GROUP
from celery_redis_plus.broker.integrity import RULES
from celery_redis_plus.cli.metric_descriptions import GAUGES, HISTOGRAMS, LABELS, PREFIX, QUEUE_COUNTERS
from celery_redis_plus.integration.ack_policies import ENDINGS, POLICIES
from celery_redis_plus.integration.worker_metrics import WORKER_PREFIX
from celery_redis_plus.record_fields import COUNTERS, FANOUT_COUNTERS, NOW, PROCESS_COUNTERS, PROCESS_GAUGES
from celery_redis_plus.spark.option_parsing import options_table
from celery_redis_plus.spark.sink_options import SinkOptions
from celery_redis_plus.spark.source_options import SourceOptions
from celery_redis_plus.transport.arguments import CONSUMER_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DOCS = Path(__file__).parent
NOTE = "<!-- Made by docs/generate.py; change the code instead. -->\n"

OPTIONS_INTRO = """# Options: broker_transport_options

Set options as `broker_transport_options` in Celery, as `transport_options` in kombu, or in the URL's query. A wrong name or value
raises an error. Options of kombu's Redis transport without a meaning here are logged once: `priority_steps`, `sep`,
`max_connections`, `protocol`.
"""

ARGUMENTS_INTRO = """# Arguments

All arguments that have an effect. Names and meanings are RabbitMQ's where it has them. Numbers are whole, times 100 years at
most. A value that is not allowed raises `InvalidArgument`. Other arguments are [refused, or named once by a
warning](usage.md#arguments-without-effect).
"""

ERRORS_INTRO = """# Errors

Temporary errors belong to the families on which Celery and kombu try again; Celery reconnects by itself. A `BrokerError` is also
kombu's `ChannelError`, and the class of py-amqp for its code, if there is one: `QueueNotFound` is an `amqp.exceptions.NotFound`.
A message that raises an `InvalidArgument` is not published.
"""


ACCESS_INTRO = """# Access rules: the ACL of workers, publishers, the exporter

The rights that each role needs on the server; integration tests run with them. Write the option `global_keyprefix` before the `*`
of `~*`, and before each key of the reader: `ROLES[0].rule("shop:")` of `celery_redis_plus.access_rules` is the first rule for the
prefix `shop:`.

A publisher can also remove messages, because scripts call the commands that do. Remote control needs the rights of a worker.

Celery's result backend needs rights of its own. On Sentinels, which have their own users, ours needs
`+sentinel|get-master-addr-by-name +sentinel|master +client|setname +client|setinfo`. On [Redis
Cluster](topologies.md#redis-cluster) each role needs `+cluster|slots +cluster|nodes`, too. Redis 7.0 does not know
`client|setinfo`: leave it out there.

| role | for |
|---|---|
"""

EVENTS_INTRO = f"""# Lifecycle events

Schema version {events.SCHEMA_VERSION}. The scripts write an event in the same atomic step as the change that it describes, to one
stream a queue, `events:{{Q}}`. The columns are listed as readers see them; `celery_redis_plus/events.py` has the encoding.
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
    """Return the page of all transport options: a heading each, so that an error or a page can link to one."""
    return OPTIONS_INTRO + "".join(
        f"\n### {name}\n\n{default_and_allowed(default, unit, with_link(allowed))}.\n\n{filled(text)}\n"
        for name, _, default, unit, allowed, text in option_texts()
    )


def default_and_allowed(default: str, unit: str, allowed: str) -> str:
    """Return an option's default and what it may be; what None means stands once, behind the default if that is None."""
    numbers = re.sub(r"\ba whole number(?: from)? (?=[\d>-])", "whole, ", allowed)
    numbers = re.sub(r"\ba number(?: from)? (?=[\d>-])", "", numbers).replace(">=", "at least")
    values, found, meaning = numbers.partition(", or None (")
    unit = "" if unit == "ratio" else unit
    if found and default == "None":
        return f"Default `None` ({meaning}; {values}{unit and f', in {unit}'}"
    if values == "True or False" and default in ("True", "False"):
        return f"Default `{default}`"
    return f"Default `{default}`{in_unit(default, unit)}; {values}{found}{meaning}"


def with_link(allowed: str) -> str:
    """Return what is allowed, with the page of the events in place of their list."""
    return re.sub(r"a list of 'published'[^N]*'", "a list of [events](events.md)", allowed)


def in_unit(default: str, unit: str) -> str:
    """Return what stands behind a default: its unit, or the unit of other values where it has none."""
    return "" if not unit else f", in {unit}" if default == "None" else f" {unit}"


def arguments_page() -> str:
    """Return the page of the arguments of queues, consumers, messages, exchanges and bindings."""
    described = (set(OF_QUEUES), set(OF_CONSUMERS), set(OF_MESSAGES) - {"x-delay"})
    known = (set(ALLOWED), set(CONSUMER_ARGUMENTS), {ID, TTL, SCOPE, CONFLICT, DELAY, MAX_WAIT, GROUP, LIMITER})
    if described != known:
        raise SystemExit(f"docs/argument_descriptions.py has {described}, and the code knows {known}")
    tables = {
        "Queues: what steers them": {name: (ALLOWED[name], doc) for name, doc in OF_QUEUES.items() if name in STEERING},
        "Queues: what they are": {name: (ALLOWED[name], doc) for name, doc in OF_QUEUES.items() if name not in STEERING},
        "Consumers": OF_CONSUMERS,
        "Headers of messages": OF_MESSAGES,
        "Exchanges and bindings": OF_EXCHANGES,
    }
    parts = [ARGUMENTS_INTRO]
    for title, table in tables.items():
        parts += [
            f"\n## {title}\n\n",
            *(f"* {linked(name, doc)} ({in_short(allowed)}): {LINK.sub('', doc)}\n" for name, (allowed, doc) in table.items()),
        ]
    return "".join(parts)


#: The page of an argument, at the end of what is said of it.
LINK = re.compile(r" \(\[[^\]]+\]\(([^)]+)\)\)(?=\.$)")


def linked(name: str, doc: str) -> str:
    """Return an argument's name, with a link to its page."""
    page = LINK.search(doc)
    return f"[`{name}`]({page[1]})" if page else f"`{name}`"


def in_short(allowed: str) -> str:
    """Return what is allowed without what the page says once: that numbers are whole, and the longest time."""
    short = re.sub(r"a whole number(?: of (ms|bytes))?", lambda match: match[1] or "number", allowed)
    return short.removesuffix(" to 3155760000000")


#: What the server itself says, and a reader of a log searches for.
SERVER_WORDS = {
    "ServerUnreachable": "Connection refused, Connection reset by peer, max number of clients reached",
    "ServerTimeout": "Timeout reading from socket",
    "CommandUnavailable": "unknown command",
    "ServerLoading": "LOADING the dataset in memory",
    "ServerUnavailable": "MISCONF, NOREPLICAS, BUSY, NOSCRIPT No matching script",
    "ReadOnlyReplica": "READONLY You can't write against a read only replica",
    "SlotUnavailable": "MOVED, ASK, TRYAGAIN, CROSSSLOT, CLUSTERDOWN",
    "ServerOutOfMemory": "OOM command not allowed when used memory > maxmemory",
    "WrongKeyType": "WRONGTYPE Operation against a key",
    "NoPermission": "NOPERM",
    "AuthenticationFailed": "NOAUTH, WRONGPASS",
}


def errors_page() -> str:
    """Return the page of all error classes, in the order of their definition."""
    classes = [
        member
        for _, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, errors.CeleryRedisPlusError) and member.__module__ == errors.__name__
    ]
    classes.sort(key=lambda member: inspect.getsourcelines(member)[1])
    texts = ((member.__name__, " ".join((inspect.getdoc(member) or "").split())) for member in classes)
    titled = ((f"{name} ({SERVER_WORDS[name]})" if name in SERVER_WORDS else name, text) for name, text in texts)
    return ERRORS_INTRO + "".join(f"\n### {title}\n\n{filled(text)}\n" for title, text in titled)


def events_page() -> str:
    """Return the page of the event schema and of the state machine."""
    changes = (
        f"* `{change.event}` ({', '.join(change.sources)} → {change.target}): {change.doc}\n"
        for change in events.TRANSITIONS.values()
    )
    return "".join(
        (
            EVENTS_INTRO,
            "\n## Events and transitions\n\n",
            *changes,
            "\n## Columns\n\n",
            *(f"* `{column.name}` ({COLUMN_TYPES[column.kind]}): {column.doc}\n" for column in events.EVENT_COLUMNS),
            "\n## Reasons\n\nOn which event, and what it means:\n\n",
            *listed(EVENT_REASONS),
        )
    )


CHECK_INTRO = """# Checking a broker

`celery-redis-plus check` prints a line for each violation of the rules below, beside workers and publishers. A call checks
`--batch` messages (100), at about 20 µs of server time each.

```bash
celery-redis-plus check --url redis://localhost:6379/0
celery-redis-plus check --url redis://localhost:6379/0 --prefix shop: --queue orders --json
celery-redis-plus check --url redis://localhost:6379/0 --repair
```

The exit status is 1 if violations were found, 2 if the check could not run. `--repair` loses no message: it removes a tag only
without a message. If the application sets `priority_order=low-first`, the URL must have it too.

"""


def check_page() -> str:
    """Return the page of the check and its rules."""
    rules = (
        f"* `{name}`: {rule.meaning}. {f'*Repair:* {rule.repair}' if rule.repair else '*Examine it*'}\n"
        for name, rule in RULES.items()
    )
    return CHECK_INTRO + "".join(rules)


SPARK_INTRO = """# Options of the Spark formats

[The data pipeline](spark.md) explains their use. Names are case-insensitive. A wrong name or value raises an error. Those with
`Trigger` in their names need PySpark 4.2.
"""


def allowed_and_default(allowed: str, unit: str, default: str) -> str:
    """Return what stands behind an option of Spark in brackets; nothing for any text without a default."""
    allowed = re.sub(r"\ba (?:whole )?number(?: from)? ?(>= )?(?=\d)", lambda match: "at least " if match[1] else "", allowed)
    parts = ("" if allowed in ("text", "True or False") else allowed, unit, f"default `{default}`" if default else "")
    return f" ({', '.join(filter(None, parts))})" if any(parts) else ""


def spark_options_page() -> str:
    """Return the page of the options of source and sink."""
    return SPARK_INTRO + "".join(
        f"\n## {title}\n\n"
        + "".join(
            f"* `{name}`{allowed_and_default(allowed, unit, default)}: {doc}\n"
            for name, allowed, default, unit, doc in options_table(kind)
        )
        for title, kind in (("Source `celery_redis`", SourceOptions), ("Sink `celery_task`", SinkOptions))
    )


ACK_POLICIES_INTRO = """# Ack policies

An ack policy decides about a message when its task ends, instead of Celery's settings `acks_late`, `acks_on_failure_or_timeout`
and `reject_on_worker_lost`. A task's policy overrides the queue's, and that one the app's:

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

With `ack_first` the message is acked before the task begins, by prefork
[within 10 ms](guarantees.md#at-least-once-at-most-once-acks_late). With the others a kill repeats the running tasks. With
`manual` the task decides, by `Ignore` or `Reject`.

"""


ACK_POLICIES_END = """
## Settle inside the task

A running task can settle its own message, with `acks_late=True`, or a policy other than `ack_first`:

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

* The call settles the message at once, in a prefork pool some milliseconds later; a kill of the worker in between loses the call.
* A failure after `ack()` adds an event `failed`; Retry sends its new message. The result stays the task's return value or
  exception.
* After `nack()` another worker may begin the message while this task still runs.
* `NotSettled` ends a second call, and a call outside a task, in another thread, in an eager task, and with early acks.
* A task may lose its message while it runs: by [`x-consumer-timeout`](consumers.md#consumer-timeout), or after a connection loss.
  Then its `ack()` still removes the message. `nack()` and `reject()` raise `NotSettled` (in prefork, a warning of the worker);
  until the worker learns of the loss, they return without effect.
* A broadcast is settled for its subscriber alone, and `nack` takes no `delay` there.
"""


def ack_policies_page() -> str:
    """Return the page of the ack policies."""
    rows = (
        table_row(f"`{ending}`", doc, *(table.get(ending, "ack") for table in POLICIES.values()))
        for ending, doc in ENDINGS.items()
    )
    head = table_head("ending", "event", *(f"`{policy}`" for policy in POLICIES))
    return ACK_POLICIES_INTRO + head + "".join(rows) + ACK_POLICIES_END


METRICS_INTRO = """# Metrics for Prometheus, and counters

`celery-redis-plus exporter` serves metrics of the queues to [Prometheus](https://prometheus.io/). It needs the extra `metrics`:

```bash
pip install ".[metrics]"
celery-redis-plus --app shop exporter
celery-redis-plus --broker redis://localhost:6379/0 exporter --host 0.0.0.0 --port 9808 'shop.*'
```

One process for a broker is enough. A scrape makes two round trips a queue and one a fanout exchange. `/metrics` needs no login.
While the broker is away, a scrape succeeds with `celery_redis_plus_up 0`.

```yaml
scrape_configs:
  - job_name: celery-redis-plus
    static_configs:
      - targets: ["127.0.0.1:9808"]
```

Rules for alerts are in [alert-rules.yml](alert-rules.yml), with [a runbook](alerts.md) for each. The queues of
Celery's remote control, replies and events have metrics with `exporter --internal` only.

## Grafana

Import [grafana-dashboard.json](grafana-dashboard.json) under *Dashboards, New, Import*, and choose the Prometheus data source.

## Latencies

`exporter --latencies` makes two histograms of the [event logs](lifecycle.md), from its start on. `event_log_sample` limits them
to the sampled messages. A scrape reads up to 50,000 events a queue.

## In a worker

With the option `metrics_port` and the extra `metrics`, a worker's main process serves metrics of itself, without a round trip.

```python
from celery import Celery

app = Celery("shop", broker="redisplus://localhost:6379/0")
app.conf.broker_transport_options = {"metrics_port": 9810, "metrics_host": "0.0.0.0"}
```

Workers of one machine need different ports (in the URL: `?metrics_port=9810`). A worker that cannot listen logs an error and
works without metrics.

## Traces

[OpenTelemetry's instrumentation of
Celery](https://opentelemetry-python-contrib.readthedocs.io/en/latest/instrumentation/celery/celery.html) works as it is. The
publisher's span is the parent of the task's span, also after a delay, retry, move or replay, and with a broadcast.
"""


DOCTOR_INTRO = """# Doctor

`celery-redis-plus doctor` names faults of the server and the queues, present and near ones. It changes nothing, and takes the
server a few milliseconds.

```bash
celery-redis-plus --app shop doctor
celery-redis-plus doctor --role worker --json
celery-redis-plus doctor --check consumers --check pauses
```

* `ok`: nothing to do
* `advice`: it works, and something should be changed
* `danger`: messages are lost, doubled, stuck or refused, now or with the next fault
* `unknown`: the user may not ask, or the server does not tell

A server whose crash loses the last second at most (`appendfsync everysec`, replicas) is `ok`. A loss of half a minute
(`appendfsync no`) is `advice`, more (only snapshots, or nothing on disk) is `danger`.

The exit status is 1 if there is danger, else 0. `--json` prints one object a finding: `check`, `level`, `text`, `advice`, and
`values`. `--role` names a role of [the access rules](access.md) whose rights the user must have. Where `CONFIG` is refused, as by
providers and to the role `monitor`, persistence and `min-replicas-to-write` are unknown.

## The checks: slow Redis, memory, rights

"""


def doctor_page() -> str:
    """Return the page of the checks of `doctor`."""
    checks = {name: inspect.getdoc(check) or "" for name, check in CHECKS.items()}
    return DOCTOR_INTRO + "".join(listed(checks)) + DOCTOR_LIMITS


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
| a limit of a queue is used | {NEARLY_FULL:.0%} | 100 % |
| a consumer has a message | {STUCK_S // 60} min | - |
| silence of a consumer | {SILENT_PART:.0%} of `consumer_heartbeat_timeout` | the same, if it holds messages |
| a pause without an end | at once | {FORGOTTEN_PAUSE_S // 60} min |
| dead letters | 1 | {NEARLY_EVICTED:.0%} of `dead_letter_max` |

Of each kind the first {NAMED} are named.
"""


def metrics_page() -> str:
    """Return the page of the exporter, its metrics, and the counters."""
    gauges = {f"{PREFIX}{name}": f"{_labels(name)}{meaning}" for name, meaning in GAUGES.items()}
    histograms = {f"{PREFIX}{name}": meaning for name, meaning in HISTOGRAMS.items()}
    counters = {f"{PREFIX}{name}_total": meaning for name, (_, meaning) in QUEUE_COUNTERS.items()}
    counted = {attribute for attribute, _ in QUEUE_COUNTERS.values()}
    rest = {name: meaning for name, meaning in {**COUNTERS, **NOW}.items() if name not in counted}
    of_worker = {
        **{f"{WORKER_PREFIX}{name}_total": meaning for name, meaning in PROCESS_COUNTERS.items()},
        **{f"{WORKER_PREFIX}{name}": meaning for name, meaning in PROCESS_GAUGES.items()},
    }
    parts: dict[str, Mapping[str, str]] = {
        "The metrics of the exporter": {**gauges, **histograms},
        "Counters of a queue": counters,
        "Further values of `counters`": rest,
        "Counters of a fanout exchange": FANOUT_COUNTERS,
        "The metrics of a worker": of_worker,
    }
    intros = {
        "The metrics of the exporter": "Gauges, and two histograms, with the label `queue`, or those in brackets.\n\n",
        "Counters of a queue": (
            "They count from the queue's declaration to its deletion, with the label `queue`. `celery-redis-plus counters` "
            "prints them, and `celery_redis_plus.counters(queue, connection=app)` reads them, by the name behind `queue_`.\n\n"
        ),
    }
    return METRICS_INTRO + "".join(
        f"\n## {title}\n\n{intros.get(title, '')}{''.join(listed(table))}" for title, table in parts.items()
    )


def _labels(name: str) -> str:
    labels = LABELS.get(name, ("queue",))
    return "" if labels == ("queue",) else f"({', '.join(labels) or 'no label'}) "


def filled(text: str) -> str:
    """Return a paragraph in lines of the usual length."""
    return textwrap.fill(text, 130, break_on_hyphens=False, break_long_words=False)


def listed(meanings: Mapping[str, str]) -> Iterator[str]:
    """Yield a list item for each name and its meaning."""
    return (f"* `{name}`: {' '.join(meaning.split())}\n" for name, meaning in meanings.items())


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


def records_page() -> str:
    """Return the list of the pages for those who change the code, and of the design records."""
    titles = {
        file.name: file.read_text(encoding="utf-8").removeprefix(NOTE).partition("\n")[0].removeprefix("# ")
        for file in sorted(DOCS.glob("design/*.md"))
        if file.name != "index.md"
    }
    listed = {name: f"* [{title}]({name})\n" for name, title in titles.items()}
    pages = "".join(item for name, item in listed.items() if not name.startswith("0"))
    records = "".join(item for name, item in listed.items() if name.startswith("0"))
    return (
        f"# Internals and design records\n\nFor those who change the code.\n\n{pages}\n## Design records\n\n"
        f"What was decided, why, and what was not done.\n\n{records}"
    )


PAGES: dict[str, Callable[[], str]] = {
    "design/index.md": records_page,
    "options.md": options_page,
    "arguments.md": arguments_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "check.md": check_page,
    "design/data.md": data_page,
    "design/contract.md": contract_page,
    "doctor.md": doctor_page,
    "metrics.md": metrics_page,
    "spark-options.md": spark_options_page,
    "ack-policies.md": ack_policies_page,
    "access.md": access_page,
    "api.md": api_page,
    "administration.md": administration_page,
    "commands.md": commands_page,
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
    for name in WITH_FIGURES:
        file = DOCS.parent / name
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
