"""Serves the metrics of one worker to Prometheus, where the transport option `metrics_port` asks for them.

They are what only the process itself knows; the queues are the exporter's (`celery-redis-plus exporter`), once for all workers.
The worker's main process serves them, also with a prefork pool: maintenance and the connection to the broker are there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from celery_redis_plus.connection.forks import on_fork_in_child
from celery_redis_plus.connection.host_lists import server_text
from celery_redis_plus.installation import install_command
from celery_redis_plus.maintenance.process_services import services
from celery_redis_plus.record_fields import PROCESS_COUNTERS, PROCESS_GAUGES

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: What the names of a worker's metrics begin with.
WORKER_PREFIX: Final = "celery_redis_plus_worker_"
#: Seconds for which a request may send nothing, or its client take nothing.
REQUEST_S: Final = 10.0


class WorkerCollector:
    """Reads the services of this process at each scrape, without asking the server."""

    def describe(self) -> list[Metric]:
        """Return nothing: all is read at a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now; over several brokers, counters are added up, of gauges the highest counts."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = [service.figures() for service in services()]
        for name, meaning in PROCESS_COUNTERS.items():
            yield CounterMetricFamily(WORKER_PREFIX + name, meaning, sum(found[name] for found in figures))
        for name, meaning in PROCESS_GAUGES.items():
            yield GaugeMetricFamily(WORKER_PREFIX + name, meaning, max((found[name] for found in figures), default=0))


class MetricsServer:
    """The HTTP server of the metrics of a worker, or of the exporter, in a thread of its own."""

    def __init__(self, host: str, port: int, collector: Collector) -> None:
        """Listen. Raises OSError where that address cannot be had, ImportError without prometheus_client."""
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(collector)
        self._server, self._thread = start_http_server(port, host, registry)
        self._server.RequestHandlerClass = _bounded(self._server.RequestHandlerClass)
        self.address = f"http://{server_text(host, self._server.server_port)}/metrics"
        on_fork_in_child(self)

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def forked(self) -> None:
        """Leave the port to the parent: a child of the pool that outlives it would keep it from the next worker."""
        self._server.socket.close()


def _bounded(handler: Any) -> Any:
    """Return a request handler that gives up a client that sends nothing: each would keep a thread and a descriptor for ever."""

    class Bounded(handler):
        timeout = REQUEST_S

        def handle(self) -> None:
            with suppress(OSError):
                super().handle()

    return Bounded


def serve_metrics(options: Options) -> MetricsServer | None:
    """Serve this process's metrics as `options` say; None where they do not ask for it, or it cannot be, which is logged.

    A worker without metrics still works, so none of this ends it.
    """
    port, host = options.metrics_port, options.metrics_host
    if port is None:
        return None
    try:
        server = MetricsServer(host, port, WorkerCollector())
    except ImportError:
        logger.error("metrics_port=%d: no metrics are served, prometheus_client is missing: %s", port, install_command("metrics"))  # noqa: TRY400
        return None
    except OSError as error:
        logger.error(  # noqa: TRY400
            "metrics_port=%d: no metrics are served, %s:%d cannot be listened on (%s); allowed are a free port, and in "
            "metrics_host an address of this machine. Each worker of a machine needs a port of its own",
            port, host, port, error,
        )  # fmt: skip
        return None
    logger.info("metrics on %s", server.address)
    return server
