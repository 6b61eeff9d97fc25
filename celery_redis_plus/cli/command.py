"""What a sub-command is, and where they are found: each module in `cli/commands/` defines one as `COMMAND`."""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

PACKAGE = "celery_redis_plus.cli.commands"


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command. Its module is imported for every call of the program, so what it needs is imported in `run`.

    Args:
        summary: one line, for the list of commands.
        description: what `COMMAND --help` says above the options.
        add_arguments: adds the options to the command's own parser.
        run: does the work and returns the exit status.
    """

    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def found_commands() -> dict[str, Command]:
    """Return the commands by name, in the order of the names; a module `dead_letters` is the command `dead-letters`."""
    package = import_module(PACKAGE)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return {name.replace("_", "-"): import_module(f"{PACKAGE}.{name}").COMMAND for name in names}
