"""The command `celery-redis-plus`: finds the sub-commands, parses the line and runs one of them.

Exit status: what the sub-command returns (0 when all is well), 2 for a line that cannot be understood, 130 after Ctrl-C, 141 when
the reader of the output has gone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from celery_redis_plus.cli.command import Command, found_commands
from celery_redis_plus.errors import CeleryRedisPlusError

PROGRAM = "celery-redis-plus"
#: What a shell makes of a program that SIGPIPE has ended: 128 and the signal's number.
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sub-command in `arguments` (by default the process's own) and return the exit status."""
    commands = found_commands()
    parser = build_parser(commands)
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 2
    try:
        status = commands[parsed.command].run(parsed)
        # What is written only at the interpreter's end fails outside of this function.
        sys.stdout.flush()
    except CeleryRedisPlusError as error:
        print(f"{PROGRAM} {parsed.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read our output has enough, as `| head` has. Python would fail once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print(f"{PROGRAM} {parsed.command}: interrupted", file=sys.stderr)
        return 130
    return status


def build_parser(commands: dict[str, Command]) -> argparse.ArgumentParser:
    """Return the parser for `commands`."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Tools for Redis or Valkey as a Celery broker.",
        epilog=f"'{PROGRAM} COMMAND --help' describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version(PROGRAM)}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in commands.items():
        command.add_arguments(
            subparsers.add_parser(
                name,
                help=command.summary,
                description=command.description,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return parser
