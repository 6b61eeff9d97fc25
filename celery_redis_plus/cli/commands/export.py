"""`celery-redis-plus export`: write what a broker has into a file."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import click

from celery_redis_plus.cli.asking import complain
from celery_redis_plus.cli.target import Target, with_target


@click.group(short_help="Export the definitions of a broker.")
def command() -> None:
    """Export the definitions of a broker."""


@command.command(short_help="Queues, exchanges, bindings and policies, as JSON.")
@with_target
@click.option(
    "--output", type=click.Path(dir_okay=False, writable=True, path_type=Path), metavar="FILE", help="Instead of the output."
)
def definitions(target: Target, *, output: Path | None) -> None:
    """Print lasting queues, exchanges, bindings and policies as JSON, close to RabbitMQ's definitions. Transient queues,
    Celery's own, and messages are left out.

    `import definitions` declares them on another broker.
    """
    with target.admin() as admin:
        found = admin.definitions()
    text = json.dumps(found.document(), indent=2) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    _write(output, text)
    complain(f"{found} are in {output}")


def _write(path: Path, text: str) -> None:
    """Write a file whole, or leave the one before it."""
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
