"""Names, help texts and documentation of the metrics, by the rules of `promtool check metrics`; the dashboard's queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest as text_format
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from celery_redis_plus.cli.latency_metrics import LatencyHistograms
from celery_redis_plus.cli.metric_descriptions import GAUGES, HISTOGRAMS, LABELS, PREFIX, QUEUE_COUNTERS
from celery_redis_plus.integration.worker_metrics import WORKER_PREFIX, WorkerCollector
from celery_redis_plus.record_fields import PROCESS_COUNTERS, PROCESS_GAUGES
from tests.docs.blocks import ROOT

DASHBOARD = ROOT / "docs/grafana-dashboard.json"
ALERTS = ROOT / "docs/alert-rules.yml"
ALERT_TESTS = [ROOT / "tests/unit/cli" / name for name in ("alert-tests.yml", "alert-tests-of-a-day.yml")]
#: What stands between `PREFIX` and a metric of a worker.
WORKER = WORKER_PREFIX.removeprefix(PREFIX)
OF_WORKER = {f"{WORKER}{name}": text for name, text in {**PROCESS_COUNTERS, **PROCESS_GAUGES}.items()}
HELP = {**GAUGES, **HISTOGRAMS, **{name: text for name, (_, text) in QUEUE_COUNTERS.items()}, **OF_WORKER}
#: What a scrape may have.
SAMPLES = {
    *GAUGES,
    *(f"{name}_total" for name in QUEUE_COUNTERS),
    *(f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "count", "sum")),
    *(f"{WORKER}{name}_total" for name in PROCESS_COUNTERS),
    *(f"{WORKER}{name}" for name in PROCESS_GAUGES),
}
#: Units that Prometheus wants as base units, and words for types.
NOT_IN_NAMES = {
    "milliseconds",
    "ms",
    "us",
    "minutes",
    "hours",
    "kilobytes",
    "gauge",
    "counter",
    "histogram",
    "bucket",
    "count",
    "sum",
}


def named(text):
    """Return the metrics that a text names, without the prefix."""
    return set(re.findall(rf"\b{PREFIX}(\w+)", text))


class Everything(Collector):
    """Every metric, once."""

    def collect(self):
        for name, text in GAUGES.items():
            labels = LABELS.get(name, ("queue",))
            family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
            family.add_metric(["x"] * len(labels), 1)
            yield family
        for name, (_, text) in QUEUE_COUNTERS.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=["queue"])
            family.add_metric(["x"], 1)
            yield family
        latencies = LatencyHistograms(lambda: None)
        for name in HISTOGRAMS:
            latencies.observe(name, "x", 1_000_000)
        yield from latencies.families()
        yield from WorkerCollector().collect()


def follows_the_rules(name):
    words = set(name.split("_"))
    return re.fullmatch(r"[a-z]+(_[a-z]+)*", name) and not words & NOT_IN_NAMES and not name.endswith("_total")


def test_the_names_follow_the_rules_and_their_texts_are_sentences():
    assert HELP
    assert [name for name, text in HELP.items() if not follows_the_rules(name) or not text.endswith(".")] == []


def test_the_exposition_is_read_by_the_strict_parser():
    registry = CollectorRegistry()
    registry.register(Everything())
    families = {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}
    assert {name.removeprefix(PREFIX) for name in families} == set(HELP)
    assert all(family.documentation == HELP[name.removeprefix(PREFIX)] for name, family in families.items())
    samples = {sample.name.removeprefix(PREFIX) for family in families.values() for sample in family.samples}
    assert samples == SAMPLES


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here; Debian: apt-get install prometheus")
def test_promtool_has_nothing_to_say():
    registry = CollectorRegistry()
    registry.register(Everything())
    checked = subprocess.run(["promtool", "check", "metrics"], input=text_format(registry), capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_dashboard_has_every_metric_of_a_worker():
    shown = named(DASHBOARD.read_text(encoding="utf-8"))
    assert {sample for sample in SAMPLES if sample.startswith(WORKER)} <= shown


def test_every_metric_is_on_its_page_and_the_page_names_no_other():
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert named(page) == SAMPLES - {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "count", "sum")} | set(
        HISTOGRAMS
    )


def test_the_dashboard_asks_for_metrics_and_labels_that_exist():
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries = [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    assert len(expressions) > 15
    for text in (*expressions, *queries):
        assert named(text), text
        assert named(text) <= SAMPLES, text
        assert set(re.findall(r"[{,](\w+)=", text)) <= {"instance", "queue", "state", "exchange"}
        assert text.count("(") == text.count(")"), text
        # One broker at a time; workers are instances of their own.
        assert WORKER in text or "instance=~" in text or text.startswith("label_values(celery_redis_plus_up,")


def test_promtool_tests_the_alerts(tmp_path):
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here; Debian: apt-get install prometheus")
    for file in (ALERTS, *ALERT_TESTS):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for kind, file in (("check", ALERTS), *(("test", file) for file in ALERT_TESTS)):
        done = subprocess.run(["promtool", kind, "rules", file.name], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_metrics_that_exist_and_a_heading_in_the_runbook():
    rules = [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/alerts.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [rule["alert"] for rule in rules] == headings
    for rule in rules:
        assert named(rule["expr"]) <= SAMPLES, rule["expr"]
        assert rule["annotations"]["runbook"] == f"alerts.md#{rule['alert'].lower()}"


def test_the_panels_of_the_dashboard_do_not_overlap():
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in dashboard["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
