"""`celery-redis-plus uninstall`: remove all that a broker has stored."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from celery_redis_plus.cli.asking import complain, confirm, dry_run_option, json_option, yes_option
from celery_redis_plus.cli.exit_status import DONE, FAILED
from celery_redis_plus.cli.output import Progress, print_json, print_table
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.admin.removal import Removal

#: Processes that a refusal names.
MOST_NAMED = 5


@click.command(short_help="Delete all keys of a broker.")
@with_target
@click.option("--force", is_flag=True, help="Even while processes consume.")
@dry_run_option
@yes_option
@json_option
def command(target: Target, *, force: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Delete all that is stored under the prefix, for good. Results of tasks, which are another program's keys, stay.

    The keys are counted first, by kind. While processes consume, it refuses (exit status 1): stop the workers, or give --force.
    Publishers are not known, and would declare their queues anew. It deletes in short steps; cut short, the same line again does
    the rest.
    """
    with target.admin() as admin:
        removals = admin.removals()
        counts: Counter[str] = Counter()
        for removal in removals:
            counts.update(removal.count())
        total = counts.total()
        if as_json and dry_run:
            print_json({"keys": counts, "total": total, "deleted": 0, "dry_run": True})
        elif not as_json:
            print_table(("KIND", "KEYS"), sorted(counts.items()))
            click.echo(f"{total:,} key(s)")
        _tell_foreign(removals)
        if _refused(removals, force=force):
            return FAILED
        if dry_run:
            return DONE
        prefixes = ", ".join(repr(removal.prefix) for removal in removals)
        confirm(f"Delete all {total:,} keys under the prefix {prefixes} at {target.display()} for good?", yes=yes)
        deleted = 0
        with Progress(total, "keys deleted") as progress:
            for removal in removals:
                deleted += removal.delete(progress.step)
        if as_json:
            print_json({"keys": counts, "total": total, "deleted": deleted, "dry_run": False})
        else:
            click.echo(f"{deleted:,} key(s) are deleted")
    return DONE


def _tell_foreign(removals: list[Removal]) -> None:
    foreign = sum(removal.foreign for removal in removals)
    if foreign:
        complain(f"{foreign:,} key(s) have names of ours, but hold something else: they stay")


def _refused(removals: list[Removal], *, force: bool) -> bool:
    living = [f"{record.host}:{record.pid}" for removal in removals for record in removal.living()]
    if not living or force:
        return False
    processes = sorted(set(living))
    more = ", …" if len(processes) > MOST_NAMED else ""
    complain(
        f"{len(processes):,} process(es) consume ({', '.join(processes[:MOST_NAMED])}{more}): stop them, or give --force. "
        "Nothing was deleted"
    )
    return True
