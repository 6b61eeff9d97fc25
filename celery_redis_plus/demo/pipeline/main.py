"""The pipeline's demo from start to end."""

from __future__ import annotations

import os
import shutil
import sys
import webbrowser
from pathlib import Path

from celery_redis_plus.demo import main
from celery_redis_plus.demo.environment import DemoApps
from celery_redis_plus.demo.pipeline.app import make_app
from celery_redis_plus.demo.pipeline.scenario import Pipeline
from celery_redis_plus.errors import InvalidArgument


def run(
    *,
    url: str | None = None,
    verbose: bool = False,
    plain: bool = False,
    output: Path,
    tasks: int = 20_000,
    open_report: bool = False,
) -> int:
    """Run it, and return the exit status, as `demo.main.run` does.

    Args:
        url: a server to use; None starts one.
        verbose: show the workers' logs.
        plain: no colours, nothing overwritten.
        output: a folder for tables and report. One of an earlier run is replaced; any other has to be empty.
        tasks: how many are run.
        open_report: show the report in a browser, where there is one.

    Raises:
        CeleryRedisPlusError: Spark or the server cannot be used; the folder holds something else.
    """
    from celery_redis_plus.spark.session import check_installed

    check_installed()
    _make_room(output)
    pipeline = Pipeline(output.absolute(), tasks)
    apps = DemoApps(make_app, "celery_redis_plus.demo.pipeline.worker_app", "CRITICAL")
    status = main.run(url=url, verbose=verbose, plain=plain, apps=apps, scenarios=(pipeline.run_scenario,))
    if open_report and pipeline.report.exists() and _has_a_screen():
        webbrowser.open(pipeline.report.as_uri())
    return status


def _make_room(output: Path) -> None:
    if output.exists() and any(output.iterdir()):
        if not (output / "tables").is_dir():
            raise InvalidArgument(f"--output {output} is not allowed: it holds something else; name a new folder")
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)


def _has_a_screen() -> bool:
    """Return whether a browser would have a window: one in the terminal would hide the demo's output."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
