"""The examples for Kubernetes: they have what KEDA and Prometheus want, and the keys that they count are those of a queue."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import kombu
import pytest
import yaml

from celery_redis_plus.cli.commands.exporter import command as exporter
from tests.docs.blocks import ROOT, all_blocks

EXAMPLES = [yaml.safe_load(block.code) for block in all_blocks("yaml") if block.page.name == "kubernetes.md"]
SCALED = [example for example in EXAMPLES if example.get("kind") == "ScaledObject"]
#: What each kind of trigger must have, of KEDA 2.12 and later.
NEEDED = {"prometheus": {"serverAddress", "query", "threshold"}, "redis": {"address", "listName", "listLength"}}


def deployments():
    """Return the examples of deployments by their names."""
    return {example["metadata"]["name"]: example for example in EXAMPLES if example.get("kind") == "Deployment"}


@pytest.mark.parametrize("example", SCALED, ids=lambda example: example["spec"]["triggers"][0]["type"])
def test_keda_has_what_it_needs_and_may_scale_to_nothing(example):
    spec = example["spec"]
    assert example["apiVersion"] == "keda.sh/v1alpha1"
    assert spec["minReplicaCount"] == 0 < spec["maxReplicaCount"]
    for trigger in spec["triggers"]:
        assert set(trigger["metadata"]) >= NEEDED[trigger["type"]]
        # KEDA reads texts only.
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_kedas_sum_has_all_that_needs_a_worker(broker_url, redis_client):
    (spec,) = (example["spec"] for example in SCALED if example["spec"]["triggers"][0]["type"] == "redis")
    keys = {trigger["name"]: trigger["metadata"]["listName"] for trigger in spec["triggers"]}
    assert set(spec["advanced"]["scalingModifiers"]["formula"].split(" + ")) == set(keys)
    with kombu.Connection(broker_url) as connection:
        channel = connection.default_channel
        queue = kombu.Queue("celery", channel=channel)
        queue.declare()
        for delay_ms in (0, 0, 0, 3_600_000):
            channel.basic_publish(channel.prepare_message(b"", headers={"x-delay": delay_ms}), routing_key="celery")
        assert channel.basic_get("celery")

        # By a sorted set's name KEDA asks for its ZCARD.
        counts = {name: redis_client.zcard(key) for name, key in keys.items()}

    assert counts == {"ready": 2, "delayed": 1, "unacked": 1}


def test_a_pod_has_longer_to_end_than_its_worker_gives_its_tasks():
    deployment = deployments()["shop-worker"]
    pod = deployment["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    (url,) = (variable["value"] for variable in worker["env"])
    options = dict(parse_qsl(urlsplit(url).query))

    assert float(options["graceful_timeout"]) < pod["terminationGracePeriodSeconds"]
    (port,) = worker["ports"]
    assert port["containerPort"] == int(options["metrics_port"])
    assert worker["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": port["name"]}
    assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_prometheus_scrapes_the_exporters_pod_as_the_job_of_the_alert_rules():
    (monitor,) = (example["spec"] for example in EXAMPLES if example.get("kind") == "PodMonitor")
    pod = deployments()["celery-exporter"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    (port,) = container["ports"]
    (default,) = (option.default for option in exporter.params if option.name == "port")

    assert container["command"] == ["celery-redis-plus", "exporter", "--host", "0.0.0.0"]
    assert port["containerPort"] == default
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == [port["name"]]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    job = pod["metadata"]["labels"][monitor["jobLabel"]]
    assert f'{{job="{job}"}}' in (ROOT / "docs/alert-rules.yml").read_text(encoding="utf-8")
