"""docs/grafana-dashboard.json: a real Prometheus scrapes the exporter and a worker, and answers each query of each panel."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tests.docs.blocks import ROOT
from tests.support.waiting import wait_until

DASHBOARD = json.loads((ROOT / "docs/grafana-dashboard.json").read_text(encoding="utf-8"))
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - job_name: celery-redis-plus
    static_configs: [{{targets: ["127.0.0.1:{exporter}", "127.0.0.1:{worker}"]}}]
"""

if shutil.which("prometheus") is None:
    pytest.skip("no Prometheus here; Debian: apt-get install prometheus", allow_module_level=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def prometheus(tmp_path):
    """Give a function that starts Prometheus with two targets; it returns what asks it."""
    started = []

    def start(exporter, worker):
        port, config = free_port(), tmp_path / "prometheus.yml"
        config.write_text(CONFIG.format(exporter=exporter, worker=worker))
        options = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}"]
        with (tmp_path / "prometheus.log").open("wb") as log:
            started.append(subprocess.Popen(["prometheus", *options], stdout=log, stderr=log))

        def ask(expression):
            try:
                with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={quote(expression)}", timeout=20) as reply:
                    return json.loads(reply.read())["data"]["result"]
            except HTTPError as error:
                if error.code != 503:
                    raise AssertionError(f"{expression}: {error.read().decode()}") from error
            except OSError:
                pass
            return None

        wait_until(lambda: ask("up") is not None, 60, (tmp_path / "prometheus.log").read_text, interval_s=0.1)
        return ask

    yield start
    for process in started:
        process.terminate()
        process.wait(20)


def as_grafana_sends_it(expression):
    return expression.replace("$broker", ".*").replace("$queue", ".*").replace("$__rate_interval", "1m")


@pytest.mark.slow
def test_prometheus_answers_each_query_of_the_dashboard(prometheus, start_program, celery_app, celery_worker, broker_url):
    port = free_port()
    # The time of work is known of acks behind it.
    config = {"broker_transport_options": {"metrics_port": port, "event_log": True}, "task_acks_late": True}
    app = celery_app("configured", broker_url, **config)
    exporter = start_program("-m", "celery_redis_plus", "--broker", broker_url, "exporter", "--latencies", "--port", "{port}")
    exporter.wait_for("/metrics")
    celery_worker("configured", config=config)
    ask = prometheus(exporter.port, port)

    def unanswered():
        app.send_task("c.add", [1, 2])
        return [one for one in EXPRESSIONS if not ask(as_grafana_sends_it(one))]

    # Rates need two scrapes, and latencies a task between them.
    wait_until(lambda: not unanswered(), 60, unanswered, interval_s=0.5)


def test_the_dashboard_has_what_grafana_reads():
    """The fields of Grafana's schema of a dashboard that each panel, target and variable needs."""
    assert isinstance(DASHBOARD["schemaVersion"], int)
    places = []
    for panel in DASHBOARD["panels"]:
        assert {"id", "type", "title", "gridPos", "targets", "datasource", "fieldConfig", "options"} <= set(panel)
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert {"defaults", "overrides"} <= set(panel["fieldConfig"])
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs))
        place = panel["gridPos"]
        assert set(place) == {"h", "w", "x", "y"}
        assert place["x"] + place["w"] <= 24
        places += [(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])]
    # No panel lies on another one, and each has its own id.
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "broker", "queue"}
