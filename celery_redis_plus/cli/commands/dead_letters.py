"""`celery-redis-plus dead-letters`: what died in a queue, and what becomes of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery_redis_plus.cli.command import Command
from celery_redis_plus.errors import InvalidArgument, QueueNotFound

if TYPE_CHECKING:
    from celery_redis_plus.broker.dead_letters.store import DeadLetter, DeadLetters
    from celery_redis_plus.cli.broker_admin import BrokerAdmin

DESCRIPTION = """\
List the dead letters of a queue, look at one, put them back to work, or delete them.

A dead letter is a message that was rejected, that expired, or whose delivery failed
too often, in a queue without a dead-letter exchange. TAG is its tag, the first column
of the list.
"""
#: Refusals that are printed one by one.
MAX_REFUSED_SHOWN = 10
ROW = "{:<36} {:<20} {:<15} {:>8} {:>10}  {}"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from celery_redis_plus.cli.connecting import add_connection_arguments

    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", title="actions")
    listing = actions.add_parser("list", help="list them, the longest dead first")
    listing.add_argument("--limit", type=_positive, default=100, metavar="N", help="how many at most (default: %(default)s)")
    listing.add_argument("--json", action="store_true", help="one JSON object a line, with headers and body")
    show = actions.add_parser("show", help="print one as JSON: headers with x-death, properties, body")
    replay = actions.add_parser("replay", help="put them back to work, with their priority and fresh counters")
    replay.add_argument("--all", action="store_true", help="every dead letter that the queue has now")
    replay.add_argument(
        "--to", metavar="QUEUE", help="to this queue instead of their own; undelivered ones go where they were published to"
    )
    delete = actions.add_parser("delete", help="delete them for good")
    purge = actions.add_parser("purge", help="delete all of the queue's for good")
    purge.add_argument("--yes", action="store_true", required=True, help="say that you mean it")
    for action in (listing, show, replay, delete, purge):
        add_connection_arguments(action)
        action.add_argument("queue", metavar="QUEUE", help="the queue they died in")
    show.add_argument("tag", metavar="TAG")
    replay.add_argument("tags", nargs="*", metavar="TAG")
    delete.add_argument("tags", nargs="+", metavar="TAG")


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed is a whole number from 1")
    return number


def _run(arguments: argparse.Namespace) -> int:
    from celery_redis_plus.cli.connecting import operator_for

    if arguments.action == "replay" and bool(arguments.tags) == arguments.all:
        print("celery-redis-plus dead-letters replay: give either tags or --all", file=sys.stderr)
        return 2
    with operator_for(arguments) as operator:
        operator.check_queue(arguments.queue)
        if arguments.action == "replay":
            return _replay(operator, arguments)
        return _ACTIONS[arguments.action](operator.dead_letters, arguments)


def _list(letters: DeadLetters, arguments: argparse.Namespace) -> int:
    found = letters.page(arguments.queue, 0, arguments.limit)
    if arguments.json:
        for letter in found:
            print(json.dumps(_described(letter, letters)))
        return 0
    print(ROW.format("TAG", "DIED (UTC)", "REASON", "FAILURES", "DELIVERIES", "TASK OR ROUTING KEY  ERROR"))
    for letter in found:
        died = datetime.fromtimestamp(letter.died_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        what = letter.headers.get("task") or letter.routing_key
        if letter.failure is not None:
            what = f"{what}  {letter.failure.text.splitlines()[0]}"
        print(ROW.format(letter.tag, died, letter.reason, letter.failures, letter.deliveries, what))
    print(f"{len(found)} of {letters.count(arguments.queue)} dead letters of queue {arguments.queue!r}")
    return 0


def _show(letters: DeadLetters, arguments: argparse.Namespace) -> int:
    letter = letters.get(arguments.queue, arguments.tag)
    if letter is None:
        return _unknown([arguments.tag], arguments.queue)
    print(json.dumps(_described(letter, letters), indent=2))
    return 0


def _replay(operator: BrokerAdmin, arguments: argparse.Namespace) -> int:
    letters = operator.dead_letters
    replayed, refused, unknown = 0, 0, []
    tags: Iterable[str] = arguments.tags
    if arguments.all:
        tags = [letter.tag for letter in letters.all(arguments.queue)]
    for tag in tags:
        letter = letters.get(arguments.queue, tag)
        try:
            if letter is not None and operator.replay(letter, arguments.to):
                replayed += 1
            else:
                unknown.append(tag)
        except (QueueNotFound, InvalidArgument) as error:
            refused += 1
            if refused <= MAX_REFUSED_SHOWN:
                print(f"celery-redis-plus dead-letters: {error}", file=sys.stderr)
    print(f"{replayed} dead letter(s) of queue {arguments.queue!r} are back to work")
    if refused:
        print(f"celery-redis-plus dead-letters: {refused} dead letter(s) stay where they are", file=sys.stderr)
    known = _unknown(unknown, arguments.queue) if unknown and not arguments.all else 0
    return 1 if refused else known


def _delete(letters: DeadLetters, arguments: argparse.Namespace) -> int:
    deleted = letters.delete(arguments.queue, arguments.tags)
    print(f"{deleted} dead letter(s) of queue {arguments.queue!r} are deleted")
    return 0 if deleted == len(set(arguments.tags)) else 1


def _purge(letters: DeadLetters, arguments: argparse.Namespace) -> int:
    print(f"{letters.purge(arguments.queue)} dead letter(s) of queue {arguments.queue!r} are deleted")
    return 0


def _unknown(tags: list[str], queue: str) -> int:
    for tag in tags:
        print(f"celery-redis-plus dead-letters: queue {queue!r} has no dead letter {tag!r}", file=sys.stderr)
    return 1


def _described(letter: DeadLetter, letters: DeadLetters) -> dict[str, Any]:
    body = letters.body(letter)
    return {
        "tag": letter.tag,
        "queue": letter.queue,
        "reason": letter.reason,
        "error": None if letter.failure is None else letter.failure.text,
        "traceback": None if letter.failure is None else letter.failure.traceback or None,
        "died": datetime.fromtimestamp(letter.died_ms / 1000, UTC).isoformat(),
        "failures": letter.failures,
        "deliveries": letter.deliveries,
        "content_type": letter.content_type,
        "content_encoding": letter.content_encoding,
        "headers": letter.death_headers,
        "properties": letter.properties,
        # Bodies are bytes; what is no text is shown with escapes.
        "body": None if body is None else body.decode("utf-8", "backslashreplace"),
    }


_ACTIONS = {"list": _list, "show": _show, "delete": _delete, "purge": _purge}

COMMAND = Command(
    summary="list, replay or delete dead letters",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
