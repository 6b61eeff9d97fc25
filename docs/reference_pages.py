"""The pages of all commands and of the Python interface: from click's definitions, signatures and docstrings."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click

import celery_redis_plus
from celery_redis_plus import signals, testing
from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.queues.listing import ListedMessage
from celery_redis_plus.cli.main import PROGRAM, commands
from celery_redis_plus.integration.messages import message
from celery_redis_plus.spark.job_arguments import add_arguments

COMMANDS_INTRO = """# Commands

[The command line](command-line.md) shows their use; `--help` of a command says more, and explains its options. Defaults stand
in brackets. Each command but `demo`, `spark` and `web-user` takes the [connection](command-line.md#connection), `--shard N`,
and most `--json`; those that delete, move or replay take `--dry-run`, those that ask `--yes`. `[QUEUE]...` are names or
patterns such as `'shop.*'`; all queues without one. *Filters* are `--task`, `--reason`, `--error`, `--release`, `--text`,
`--older-than` and `--newer-than`.
"""
#: Public names that other pages describe: module -> names and page.
ELSEWHERE = {
    "celery_redis_plus.errors": ("all classes", "errors.md"),
    "celery_redis_plus.access_rules": ("ROLES", "access.md"),
    "celery_redis_plus.admin.broker_admin": ("BrokerAdmin", "administration.md"),
    "celery_redis_plus.broker.dead_letters.search": ("DeadLetterFilter", "dead-letters.md"),
    "celery_redis_plus.spark.delta_log": ("tables and storage_options", "delta.md"),
    "celery_redis_plus.spark.manifest": ("files", "spark.md"),
    "celery_redis_plus.spark.sending": ("sending", "spark.md"),
    "celery_redis_plus.spark.session": ("register", "spark.md"),
    "celery_redis_plus.spark.views": ("register_views", "spark.md"),
    "celery_redis_plus.testing.fixtures": ("the fixtures", "testing.md"),
    "celery_redis_plus.testing.server": ("embedded_binary", "tutorial.md"),
}
#: The page that tells how a name is used: there is what its docstring says behind the first paragraph and of arguments, too.
TOLD_ON = {
    **dict.fromkeys(("ack", "nack", "reject"), "ack-policies.md#settle-inside-the-task"),
    **dict.fromkeys(("broadcast", "delivery", "publish", "Delivery"), "flow-control.md#tracked-deliveries"),
    **dict.fromkeys(("cancel", "move", "reschedule"), "lifecycle.md#cancel-reschedule-move"),
    **dict.fromkeys(("assert_enqueued", "drain", "enqueued"), "testing.md#assertions"),
    **dict.fromkeys(("Missed", "SubscriberDied"), "broadcasts.md#missed-broadcasts-and-crashed-subscribers"),
    "EmbeddedServer": "testing.md#a-server-without-fixtures",
    "RetryPolicy": "lifecycle.md#retry-policies",
    "advance": "testing.md#time",
    "browse": "consumers.md#browsing-a-queue",
    "fence": "fencing.md",
    "limit": "limiters.md#inside-a-task",
    "message": "lifecycle.md#one-message-the-history-of-a-task",
    "send_many": "usage.md#publishing-many-tasks-at-once",
    "snooze": "retries.md#snooze-later-without-a-failure",
}
API_INTRO = """# Python interface

The public interface is this page, with its names and arguments, the options, the command line and the URL schemes.
[Semantic versioning](https://semver.org/) holds for it. All other modules, and names that begin with `_`, may change in any
release.

Functions that ask the server raise its [errors](errors.md), `InvalidArgument` for a wrong argument, and `OptionError` where the
app has another broker. `connection` is a kombu Connection, a channel over our transport, or a Celery app. `id` is a message's id
(its delivery tag), or Celery's task id. `app` of `celery_redis_plus.testing` is the task's, or the current one. `help` says more
of methods and names with a link *Use*.

Elsewhere are:

""" + "".join(
    f"* `{module}`: [{names if ' ' in names else f'`{names}`'}]({page})\n" for module, (names, page) in ELSEWHERE.items()
)

ADMINISTRATION_INTRO = """# Administration in Python

`celery_redis_plus.admin.broker_admin` has what [the commands](commands.md) do, and is as public as [the other names](api.md). A
wrong argument raises `InvalidArgument`.
"""

#: Methods that are the package's own business.
INTERNAL = {
    "Delivery.forked",
    "BrokerAdmin.check_mark",
    "BrokerAdmin.over",
    "RetryPolicy.record",
    "BrokerAdmin.overviews_of",
    "BrokerAdmin.waiting_tags",
    "BrokerAdmin.check_queue",
    "BrokerAdmin.commands",
    "BrokerAdmin.counters_of",
    "BrokerAdmin.held_tags",
    "BrokerAdmin.keys",
    "BrokerAdmin.list_policy",
    "BrokerAdmin.options",
    "BrokerAdmin.steer_without_policy",
    "BrokerAdmin.stored_small",
    "BrokerAdmin.unlist_policy",
}
#: Classes that the functions return, and no program makes.
RETURNED = {"BrokerBack", "BrokerLost", "BrowsedMessage", "Delivery", "EnqueuedTask", "ListedMessage", "Missed", "SubscriberDied"}
#: Classes whose attributes that page has.
ATTRIBUTES_ELSEWHERE = {"Missed", "RetryPolicy", "SubscriberDied"}
#: What the page says once, for all.
SAID_ONCE = re.compile(
    r"redis\.exceptions\.RedisError: as `error_translation"
    r"|InvalidArgument: "
    r"|connection: a kombu Connection|app: (the app; )?None: |(app|id|queue): see `|OptionError: the app's broker is none of ours"
    r"|kombu.exceptions.ChannelError: as `Channel|queue: its name\.?$|(kombu.exceptions.)?ChannelError: there is no such queue"
)
#: Options that the page tells of before the list.
COMMON = {"--app", "--broker", "--help", "--json", "--dry-run", "--yes", "--shard"}
#: What the page says of them once.
PATTERNS = re.compile(r" QUEUE is a name or a pattern such as 'shop\.\*'(; all queues without one)?\.")
#: Options that select dead letters, which most commands for these take.
FILTERS = ["--task", "--reason", "--error", "--release", "--text", "--older-than", "--newer-than"]
#: Sections of a docstring, and the word before their lists.
SECTIONS = {"Args": "Arguments", "Attributes": "Attributes", "Raises": "Raises"}
HEADING = re.compile(rf"^({'|'.join([*SECTIONS, 'Example'])}):(?: |$)", re.MULTILINE)
#: An entry of a section: `name: text`, its further lines indented deeper.
ENTRY = re.compile(r"^(?=[\w., ]+: )", re.MULTILINE)
MODULES = {
    "celery_redis_plus": (celery_redis_plus, sorted({*celery_redis_plus.__all__} - {"__version__", "Transport"})),
    "celery_redis_plus.testing": (testing, testing.__all__),
    "celery_redis_plus.signals": (signals, ["connect", "Missed", "SubscriberDied", "BrokerLost", "BrokerBack"]),
}


@dataclass(frozen=True)
class _Command:
    """One command as the page shows it, with the names of its options."""

    usage: str
    text: str
    options: tuple[str, ...] = ()


def commands_page() -> str:
    """Return the page of all commands and their options."""
    with click.Context(commands, info_name=PROGRAM) as ctx:
        return COMMANDS_INTRO + _told(_group(commands, ctx))


def _told(found: Iterable[_Command]) -> str:
    """Return what the page says of commands."""
    parts = []
    for one in found:
        listed = ", ".join(one.options).replace(", ".join(f"`{name}`" for name in FILTERS), "the filters")
        parts.append(f"\n### {one.usage}\n\n{one.text}\n{f'{chr(10)}Options: {listed}{chr(10)}' if listed else ''}")
    return "".join(parts)


def _group(group: click.Group, ctx: click.Context) -> Iterator[_Command]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        with click.Context(command, info_name=name, parent=ctx) as below:
            yield from _command(command, below)


def _command(command: click.Command, ctx: click.Context) -> Iterator[_Command]:
    path = ctx.command_path.removeprefix(f"{PROGRAM} ")
    text = _first_sentence(PATTERNS.sub("", _plain((command.help or "").partition("\n\n")[0])))
    if isinstance(command, click.Group):
        yield from _group(command, ctx)
    elif path == "spark":
        jobs = ", ".join(f"`{name}`" for name in _spark_jobs())
        yield _Command(
            "spark JOB", f"{text} [The data pipeline](spark.md) explains the jobs {jobs}; `--help` lists their options."
        )
    else:
        usage = " ".join([path, *(piece for piece in command.collect_usage_pieces(ctx) if piece != "[OPTIONS]")])
        options = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
        shown = [one for one in options if not set(one.opts) & {*COMMON, "--prefix"} and not one.hidden]
        yield _Command(usage, text, tuple(map(_option, shown)))


def _option(option: click.Option) -> str:
    """Return an option's name, with its default where `--help` shows that."""
    default = f" ({option.default})" if option.show_default and not option.is_flag else ""
    return f"`{'` / `'.join([option.opts[-1], *option.secondary_opts])}`{default}"


def _spark_jobs() -> Iterator[str]:
    """Yield the name of each job of `spark`."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    (chosen,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001 - no other way
    yield from chosen.choices


def api_page() -> str:
    """Return the page of what programs import."""
    parts = [API_INTRO]
    for module, (loaded, names) in MODULES.items():
        parts.append(f"\n## {module}\n")
        # `message` is short for a function that loads Celery.
        found = {**{name: getattr(loaded, name) for name in names}, **({"message": message} if "message" in names else {})}
        parts += [part for name, value in found.items() for part in _object(name, value)]
    return "".join(parts)


def administration_page() -> str:
    """Return the page of what programs of operators import."""
    return "".join((ADMINISTRATION_INTRO, *_object("BrokerAdmin", BrokerAdmin), *_object("ListedMessage", ListedMessage)))


def _object(name: str, value: Any) -> Iterator[str]:
    yield f"\n### {name}\n\n"
    if not (inspect.isclass(value) and issubclass(value, Exception)) and name not in RETURNED:
        yield f"```text\n{_signature(name, value)}\n```\n\n"
    yield _docstring(inspect.getdoc(value) or "", TOLD_ON.get(name), attributes=name not in ATTRIBUTES_ELSEWHERE)
    if inspect.isclass(value):
        yield "".join(("\n", *_members(name, value))) if any(_members(name, value)) else ""


def _held(value: type[Any]) -> dict[str, Any]:
    """Return what a class has, with the parts of an administration that are classes of their own."""
    parts = [one for one in value.__mro__ if one is value or one.__module__.startswith("celery_redis_plus.admin.")]
    held: dict[str, Any] = {}
    for part in parts:
        held |= {name: member for name, member in vars(part).items() if name not in held}
    return held


def _members(name: str, value: type[Any]) -> Iterator[str]:
    """Yield a list item for each public method and property."""
    for member, held in _held(value).items():
        called = getattr(value, member) if isinstance(held, classmethod) else held
        if member.startswith("_") or f"{name}.{member}" in INTERNAL:
            continue
        if (callable(called) or isinstance(held, property)) and inspect.getdoc(called):
            shown = member if isinstance(held, property) else _plain(_signature(member, called))
            summary, *sections = HEADING.split(inspect.getdoc(called) or "")
            told = _first_sentence(_plain(summary.partition("\n\n")[0]))
            told = re.sub(r"[;,] see `[\w.]+`\.$", ".", told)
            raised = [entry.partition(": ")[0] for title, entries in _entries(sections) if title == "Raises" for entry in entries]
            # The class says once that methods raise it for a queue that is not there.
            raised = [error for error in raised if error != "QueueNotFound" or name != "BrokerAdmin"]
            yield f"* `{shown}`: {told}{f' Raises {_names(raised)}.' if raised else ''}\n"


def _first_sentence(text: str) -> str:
    """Return the first sentence of a paragraph, without a verb that the arrow of a signature stands for."""
    first = re.split(r"(?<=\.) (?=[A-Z`])", text, maxsplit=1)[0].removeprefix("Return ").removeprefix("Yield ")
    return first[0].upper() + first[1:]


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _entries(sections: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield title and entries of a docstring's sections, without what the page says once."""
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title != "Example":
            entries = [_plain(one) for one in ENTRY.split(textwrap.dedent(body).strip("\n")) if one.strip()]
            yield SECTIONS[title], [entry for entry in entries if not SAID_ONCE.match(entry)]


def _signature(name: str, value: Any) -> str:
    """Return name and arguments with their defaults. Types are in the code, which is typed: an editor shows them."""
    found = inspect.signature(value)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values() if one.name != "self"]
    returned = "" if found.return_annotation in (None, "None", inspect.Signature.empty) else f" -> {found.return_annotation}"
    text = str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty)) + returned.replace("'", "")
    return textwrap.fill(
        name + re.sub(r"<function .*? at \w+>", "...", text), 118, break_on_hyphens=False, subsequent_indent="    "
    )


def _docstring(text: str, told_on: str | None, *, attributes: bool) -> str:
    summary, *sections = HEADING.split(text)
    if told_on is not None:
        first = summary.strip().partition("\n\n")[0].rstrip()
        summary = f"{first} [Use]({told_on})."
    parts = [_prose(summary)]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title == "Example":
            code = textwrap.dedent(body).strip("\n")
            parts.append(f"<!-- not run: a docstring's example -->\n```python\n{code}\n```")
    for title, entries in _entries(sections):
        split = [entry.partition(": ") for entry in entries]
        if told_on is not None and title == "Raises" and split:
            parts.append(f"Raises {_names([name for name, _, _ in split])}.")
        elif split and (attributes or title != "Attributes") and (told_on is None or title != "Arguments"):
            parts.append(f"{title}:\n\n" + "\n".join(f"- `{name}`: {meaning}" for name, _, meaning in split))
    return "\n\n".join(filter(None, parts)) + "\n"


def _prose(text: str) -> str:
    """Return paragraphs and lists of a docstring as Markdown, wrapped anew."""
    found = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        items = re.split(r"^- ", block, flags=re.MULTILINE)
        if len(items) > 1:
            found.append("\n".join(f"- {_plain(item)}" for item in items if item.strip()))
        else:
            found.append(textwrap.fill(_plain(block), 130, break_on_hyphens=False, break_long_words=False))
    return "\n\n".join(found)


def _plain(text: str) -> str:
    return " ".join(text.split())
