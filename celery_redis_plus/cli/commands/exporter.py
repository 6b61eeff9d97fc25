"""`celery-redis-plus exporter`: metrics of the queues for Prometheus."""

from __future__ import annotations

import json
import threading
from functools import partial

import click

from celery_redis_plus.cli.asking import internal_option
from celery_redis_plus.cli.exit_status import DONE
from celery_redis_plus.cli.target import Target, with_target
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.installation import install_command


@click.command(short_help="Serve metrics of the queues to Prometheus.")
@with_target
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen; '0.0.0.0' for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=9808, show_default=True, help="0 takes a free one.")
@click.option("--latencies", is_flag=True, help="Histograms of wait and work, of queues with an event log.")
@internal_option
def command(target: Target, *, queues: tuple[str, ...], host: str, port: int, latencies: bool, internal: bool) -> int:
    """Serve metrics of the queues to Prometheus, at /metrics, until Ctrl-C. QUEUE is a name or a pattern such as 'shop.*'; all
    queues without one. docs/metrics.md lists the metrics. Needs the extra "metrics".

    It needs no login, so it listens on the loopback address only, unless --host says otherwise.
    """
    try:
        from celery_redis_plus.cli.latency_metrics import LatencyHistograms
        from celery_redis_plus.cli.metrics import BrokerCollector
        from celery_redis_plus.integration.worker_metrics import MetricsServer

        open_logs = partial(target.event_logs, partial=True)
        histograms = LatencyHistograms(open_logs, json.dumps(queues or ["*"])) if latencies else None
        collector = BrokerCollector(target.admin, queues, histograms, internal=internal)
        server = MetricsServer(host, port, collector)
    except ImportError as error:
        raise InvalidArgument(f"prometheus_client is missing: {install_command('metrics')}") from error
    click.echo(f"metrics on {server.address}", err=True)
    try:
        # Until Ctrl-C.
        threading.Event().wait()
    except KeyboardInterrupt:
        return DONE
    finally:
        server.stop()
        collector.close()
    return DONE
