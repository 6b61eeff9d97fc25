"""`celery-redis-plus doctor`: what is wrong, or soon will be."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from celery_redis_plus.admin.formatting import visible
from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.exit_status import DONE, FAILED
from celery_redis_plus.cli.output import has_colours, print_json
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.admin.diagnosis.finding import Finding

COLOURS = {"ok": "green", "advice": "yellow", "danger": "red", "unknown": "cyan"}
#: The order in which findings are printed.
WORST_FIRST = ("danger", "unknown", "advice", "ok")
ROLES = ("worker", "publisher", "monitor")


@click.command(short_help="Look for what is wrong, or soon will be.")
@with_target
@click.option("--check", "checks", multiple=True, metavar="NAME", help="Only this check; may be repeated.")
@click.option("--role", "roles", multiple=True, type=click.Choice(ROLES), help="The user must have the rights of this role.")
@json_option
def command(target: Target, *, checks: tuple[str, ...], roles: tuple[str, ...], as_json: bool) -> int:
    """Examine the server and the queues. docs/doctor.md lists the checks.

    Each finding is ok, advice, danger or unknown, with what to do, the worst first. Nothing is changed. The exit status is 1 if
    there is danger.
    --json prints one object a finding, one a line.
    """
    levels: Counter[str] = Counter()
    with target.admin() as admin:
        found = list(admin.examine(checks, roles, kombu_options=target.kombu_options()))
    for finding in sorted(found, key=lambda one: WORST_FIRST.index(one.level)):
        levels[finding.level] += 1
        _show(finding, as_json=as_json)
    if not as_json:
        click.echo(f"{levels.total()} finding(s): " + ", ".join(f"{levels[level]} {level}" for level in COLOURS if levels[level]))
    return FAILED if levels["danger"] else DONE


def _show(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(finding))
        return
    level = f"{finding.level:7}"
    if has_colours():
        level = click.style(level, fg=COLOURS[finding.level])
    click.echo(f"{level}  {finding.check:12}  {visible(finding.text)}")
    if finding.advice:
        click.echo(f"{'':23}{visible(finding.advice)}")
