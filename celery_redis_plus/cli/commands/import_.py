"""`celery-redis-plus import`: declare what a file says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TextIO

import click

from celery_redis_plus.cli.asking import complain, json_option
from celery_redis_plus.cli.exit_status import DONE, FAILED
from celery_redis_plus.cli.output import Progress, print_json
from celery_redis_plus.cli.target import Target, with_target
from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from celery_redis_plus.admin.definition_admin import Comparison

#: As `admin.definitions` has them, which `--help` does not load.
KINDS: Final = ("exchanges", "queues", "bindings", "policies")


@click.group(short_help="Import definitions into a broker.")
def command() -> None:
    """Import definitions into a broker."""


@command.command(short_help="Queues, exchanges, bindings and policies of a file.")
@with_target
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--only", type=click.Choice(KINDS), multiple=True, help="Only these; may be repeated.")
@click.option("--skip-conflicts", is_flag=True, help="Declare the rest where the broker has some otherwise.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print what it would be.")
@json_option
def definitions(
    target: Target, *, file: TextIO, only: tuple[str, ...], skip_conflicts: bool, dry_run: bool, as_json: bool
) -> int:  # fmt: skip
    """Declare the queues, exchanges, bindings and policies of FILE (- is the input), by `export definitions` or RabbitMQ. What is
    there stays as it is; nothing is deleted.

    The whole file is checked first. Where an entry cannot be declared, or the broker has it otherwise, nothing is changed, each
    is named on stderr, and the exit status is 1. Cut short, the same line again does the rest.
    """
    from celery_redis_plus.admin.definitions import read_definitions

    try:
        document = json.load(file)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{file.name} is no JSON: {error}") from error
    wanted = read_definitions(document, only or KINDS)
    with target.admin() as admin:
        found = admin.compare_definitions(wanted)
        for conflict in found.conflicts:
            complain(f"conflict: {conflict}")
        refused: list[str] = []
        stays = dry_run or bool(found.conflicts and not skip_conflicts)
        if not stays and len(found.missing):
            with Progress(len(found.missing), "definitions declared") as progress:
                refused = admin.declare_definitions(found.missing, progress.step)
    for one in refused:
        complain(one)
    _tell(found, changed=not stays, dry_run=dry_run, as_json=as_json)
    return FAILED if found.conflicts or refused else DONE


def _tell(found: Comparison, *, changed: bool, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "declared" if changed else "missing": found.missing.counts(), "present": found.present,
                "conflicts": found.conflicts, "dry_run": dry_run,
            }
        )  # fmt: skip
        return
    done = "are declared" if changed else "would be declared" if dry_run else "are missing; nothing was changed"
    click.echo(f"{found.missing} {done}; {found.present:,} are there already")
