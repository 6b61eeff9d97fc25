"""The command `celery-redis-plus`, which is also `celery -A app redisplus`: finds the sub-commands and runs one of them.

Celery loads this module at each start of each of its commands (entry point group `celery.commands`), so it imports little: a
sub-command's module is imported when its name or its help is wanted, and what it works with when it runs.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

from celery_redis_plus.cli import exit_status
from celery_redis_plus.version import __version__

PROGRAM = "celery-redis-plus"
PACKAGE = "celery_redis_plus.cli.commands"


class CommandLine(click.Group):
    """The sub-commands, each `command` of a module in `cli/commands/`; `dead_letters` is `dead-letters`, `import_` `import`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click gives the signature
        """Return the names, sorted."""
        package = import_module(PACKAGE)
        return sorted(module.name.rstrip("_").replace("_", "-") for module in pkgutil.iter_modules(package.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one, None where there is none of that name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = import_module(f"{PACKAGE}.{name}{'_' * iskeyword(name)}").command
        return command

    def invoke(self, ctx: click.Context) -> None:
        """Run the sub-command and end with its exit status. Errors are one line on stderr."""
        ctx.exit(_status_of(lambda: super(CommandLine, self).invoke(ctx), lambda: f"{ctx.command_path} {ctx.invoked_subcommand}"))


def _status_of(run: Callable[[], Any], name: Callable[[], str]) -> int:
    try:
        status = run()
        # What is written only at the interpreter's end fails outside of this function.
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would fail once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_status.BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"{name()}: interrupted", err=True)
        return exit_status.INTERRUPTED
    except (click.ClickException, click.exceptions.Exit):
        raise
    except Exception as error:
        status = status_of_error(error)
        if status is None:
            raise
        click.echo(f"{name()}: {error}", err=True)
        return status
    return status if isinstance(status, int) else exit_status.DONE


def status_of_error(error: Exception) -> int | None:
    """Return the exit status for an error that a line of text explains; None for one that is a defect of ours."""
    # Not at the top: `--help` needs neither.
    from redis import exceptions as redis_errors

    from celery_redis_plus.errors import CeleryRedisPlusError

    if isinstance(error, (redis_errors.ConnectionError, redis_errors.TimeoutError, ConnectionError, TimeoutError)):
        return exit_status.UNREACHABLE
    if isinstance(error, (CeleryRedisPlusError, redis_errors.RedisError, OSError)):
        # The latter of a file that cannot be written, or an address that is not this machine's.
        return exit_status.FAILED
    return None


@click.command(
    "redisplus",
    cls=CommandLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="'COMMAND --help' describes a command.",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.option("-A", "--app", metavar="MODULE", help="The Celery app, as `celery -A` takes it. Its connection is used.")
@click.option("-b", "--broker", "--url", metavar="URL", help="The broker, without an app.")
@click.option("--prefix", metavar="TEXT", help="The app's option global_keyprefix.")
@click.pass_context
def commands(ctx: click.Context, /, **target: str | None) -> int:
    """Look at Redis or Valkey as a Celery broker, and act on it."""
    from celery_redis_plus.cli.target import GIVEN_BEFORE

    ctx.meta[GIVEN_BEFORE] = target
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return exit_status.USAGE
    return exit_status.DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sub-command in `arguments` (by default the process's own) and return the exit status, see `exit_status`."""
    try:
        commands.main(args=None if arguments is None else list(arguments), prog_name=PROGRAM)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else exit_status.FAILED
