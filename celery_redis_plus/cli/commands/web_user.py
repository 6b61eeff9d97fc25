"""`celery-redis-plus web-user`: write a user of the web page into a file."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from celery_redis_plus.cli.asking import complain
from celery_redis_plus.cli.exit_status import DONE, FAILED
from celery_redis_plus.cli.target import refuse_given_before

#: As `cli.web.users` has them, which `--help` does not load.
ROLES: Final = ("viewer", "operator")


@click.command(short_help="Write a user of the web page, with a password.")
@click.argument("name")
@click.option(
    "--file", "path", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="The file that `web --users` takes; made where there is none.",
)  # fmt: skip
@click.option(
    "--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="A viewer looks, an operator acts as well."
)
@click.option("--remove", is_flag=True, help="Remove the user.")
@click.pass_context
def command(ctx: click.Context, *, name: str, path: Path, role: str, remove: bool) -> int:
    """Write the user NAME of the web page into a file, in place of one of that name. It asks for the password, or reads a line of
    the input. Start a running page anew.
    """
    from celery_redis_plus.cli.web.users import user_line

    refuse_given_before(ctx, "it writes a file alone")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    others = [line for line in lines if line.partition(":")[0] != name]
    if remove:
        if len(others) == len(lines):
            complain(f"there is no user {name!r} in {path}")
            return FAILED
        _write(path, others)
        return DONE
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    _write(path, [*others, user_line(name, role, password)])
    complain(f"{name} is {'an operator' if role == 'operator' else 'a viewer'} in {path}")
    return DONE


def _write(path: Path, lines: list[str]) -> None:
    """Write a file whole, which only its owner may read, or leave the one before it."""
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
