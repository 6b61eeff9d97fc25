"""The pages of all commands and of the Python interface: from click's definitions, signatures and docstrings."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import click

import celery_redis_plus
from celery_redis_plus import signals, testing
from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.queues.listing import ListedMessage
from celery_redis_plus.cli.main import PROGRAM, commands
from celery_redis_plus.integration.messages import message
from celery_redis_plus.spark.job_arguments import add_arguments

COMMANDS_INTRO = f"""# Commands

All sub-commands of `{PROGRAM}` and of `celery -A app redisplus`, with their options.
[The command line](command-line.md) shows them at work, and has the [exit statuses](command-line.md#exit-status).

Each command but `demo` and `spark` takes these, before or behind its name:
"""

#: Public names that other pages describe: module -> names and page.
ELSEWHERE = {
    "celery_redis_plus.errors": ("all classes", "errors.md"),
    "celery_redis_plus.access_rules": ("ROLES", "access.md"),
    "celery_redis_plus.broker.dead_letters.search": ("DeadLetterFilter", "command-line.md"),
    "celery_redis_plus.spark.manifest": ("files", "spark.md"),
    "celery_redis_plus.spark.session": ("register", "spark.md"),
    "celery_redis_plus.spark.views": ("register_views", "spark.md"),
    "celery_redis_plus.testing.fixtures": ("the fixtures", "testing.md"),
    "celery_redis_plus.testing.server": ("embedded_binary", "tutorial.md"),
}
API_INTRO = """# Python interface

Public is what this page lists, with the names and arguments that it gives, the options, the command line and the URL schemes.
[Semantic versioning](https://semver.org/) holds for these. All other modules, and names that begin with `_`, may change in any
release. Import `BrokerAdmin` from where this page has it.

These names have their page elsewhere:

| module | names | page |
|---|---|---|
""" + "".join(
    f"| `{module}` | {names if ' ' in names else f'`{names}`'} | [{page.removesuffix('.md')}]({page}) |\n"
    for module, (names, page) in ELSEWHERE.items()
)

#: Methods that are the package's own business.
INTERNAL = {"Delivery.forked", "RetryPolicy.record", "BrokerAdmin.overviews_of", "BrokerAdmin.waiting_tags"}
#: Classes that the functions return, and no program makes.
RETURNED = {"Delivery", "BrowsedMessage", "ListedMessage"}
#: Options that each command has.
COMMON = ("--app", "--broker", "--prefix", "--help")
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


def commands_page() -> str:
    """Return the page of all commands and their options."""
    with click.Context(commands, info_name=PROGRAM) as ctx:
        target = commands.get_command(ctx, "queues")
        common = [param for param in target.get_params(ctx) if set(param.opts) & set(COMMON)]
        return COMMANDS_INTRO + _options(common, ctx) + "".join(_group(commands, ctx))


def _group(group: click.Group, ctx: click.Context) -> Iterator[str]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        with click.Context(command, info_name=name, parent=ctx) as below:
            yield from _command(command, below)


def _command(command: click.Command, ctx: click.Context) -> Iterator[str]:
    path = ctx.command_path.removeprefix(f"{PROGRAM} ")
    yield f"\n{'#' * (1 + len(path.split()))} {path}\n\n{_prose(command.help or '')}\n"
    if isinstance(command, click.Group):
        yield from _group(command, ctx)
    elif path == "spark":
        yield from _spark_jobs()
    else:
        usage = " ".join([PROGRAM, path, *(piece for piece in command.collect_usage_pieces(ctx))])
        yield f"\n```text\n{usage}\n```\n"
        options = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
        yield _options([option for option in options if not set(option.opts) & set(COMMON)], ctx)


def _options(params: Sequence[click.Parameter], ctx: click.Context) -> str:
    records = [record for param in params if (record := param.get_help_record(ctx))]
    return _table("option", [(f"`{names}`", text) for names, text in records])


def _spark_jobs() -> Iterator[str]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    (chosen,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001 - no other way
    helps = {action.dest: action.help for action in chosen._choices_actions}  # noqa: SLF001
    for name, job in chosen.choices.items():
        yield f"\n### spark {name}\n\n{_prose(helps.get(name) or job.description or '')}\n"
        rows = [
            (f"`{', '.join(action.option_strings)}`", _argparse_text(action))
            for action in job._actions  # noqa: SLF001
            if action.option_strings and action.dest != "help"
        ]
        yield _table("option", rows)


def _argparse_text(action: argparse.Action) -> str:
    text = (action.help or "") % {"default": action.default}
    told = "default" in text or action.default in (None, False, "", [])
    return text if told else f"{text} [default: {action.default}]".strip()


def api_page() -> str:
    """Return the page of what programs import."""
    parts = [API_INTRO]
    for module, (loaded, names) in MODULES.items():
        parts.append(f"\n## {module}\n")
        # `message` is short for a function that loads Celery.
        found = {**{name: getattr(loaded, name) for name in names}, **({"message": message} if "message" in names else {})}
        parts += [part for name, value in found.items() for part in _object(name, value)]
    parts.append("\n## celery_redis_plus.admin.broker_admin\n")
    parts += [*_object("BrokerAdmin", BrokerAdmin), *_object("ListedMessage", ListedMessage)]
    return "".join(parts)


def _object(name: str, value: Any, level: int = 3) -> Iterator[str]:
    yield f"\n{'#' * level} {name}\n\n"
    if not isinstance(value, property) and not (inspect.isclass(value) and issubclass(value, Exception)) and name not in RETURNED:
        yield f"```text\n{_signature(name.rpartition('.')[2], value)}\n```\n\n"
    yield _docstring(inspect.getdoc(value) or "")
    if inspect.isclass(value):
        for member, held in vars(value).items():
            called = getattr(value, member) if isinstance(held, classmethod) else held
            if member.startswith("_") or f"{name}.{member}" in INTERNAL:
                continue
            if (callable(called) or isinstance(held, property)) and inspect.getdoc(called):
                yield from _object(f"{name}.{member}", called, level + 1)


def _signature(name: str, value: Any) -> str:
    text = re.sub(r"(: |-> )'([^']+)'", r"\1\2", str(inspect.signature(value))).replace(" -> None", "")
    text = re.sub(r"<function .*? at \w+>", "...", text).replace("(self, ", "(").replace("(self)", "()")
    return textwrap.fill(name + text, 118, break_on_hyphens=False, subsequent_indent="    ")


def _docstring(text: str) -> str:
    summary, *sections = HEADING.split(text)
    parts = [_prose(summary)]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title == "Example":
            code = textwrap.dedent(body).strip("\n")
            parts.append(f"<!-- not run: a docstring's example -->\n```python\n{code}\n```")
            continue
        entries = [" ".join(one.split()) for one in ENTRY.split(textwrap.dedent(body).strip("\n")) if one.strip()]
        split = [entry.partition(": ") for entry in entries]
        parts.append(f"{SECTIONS[title]}:\n\n" + "\n".join(f"- `{name}`: {_plain(meaning)}" for name, _, meaning in split))
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


def _table(head: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    lines = (f"| {name.replace('|', chr(92) + '|')} | {_plain(text).replace('|', chr(92) + '|')} |" for name, text in rows)
    return f"\n| {head} | meaning |\n|---|---|\n" + "\n".join(lines) + "\n"
