"""The examples for Kubernetes: they have what KEDA and the autoscaler want, and the keys that they count are those of a queue."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import kombu
import pytest
import yaml

from tests.docs.blocks import all_blocks

EXAMPLES = [yaml.safe_load(block.code) for block in all_blocks("yaml") if block.page.name == "kubernetes.md"]
SCALED = [example for example in EXAMPLES if example.get("kind") == "ScaledObject"]
AUTOSCALED = [example for example in EXAMPLES if example.get("kind") == "HorizontalPodAutoscaler"]
RULES = [rule for example in EXAMPLES for rule in example.get("externalRules", ())]
#: What each kind of trigger must have, of KEDA 2.12 and later.
NEEDED = {"prometheus": {"serverAddress", "query", "threshold"}, "redis": {"address", "listName", "listLength"}}


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
    (deployment,) = (example for example in EXAMPLES if example.get("kind") == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    (url,) = (variable["value"] for variable in worker["env"])
    options = dict(parse_qsl(urlsplit(url).query))

    assert float(options["graceful_timeout"]) < pod["terminationGracePeriodSeconds"]
    (port,) = worker["ports"]
    assert port["containerPort"] == int(options["metrics_port"])
    assert worker["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": port["name"]}
    assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_the_autoscaler_reads_the_metric_that_the_adapter_makes():
    (autoscaler,), (rule,) = AUTOSCALED, RULES
    spec = autoscaler["spec"]
    assert autoscaler["apiVersion"] == "autoscaling/v2"
    assert set(spec["scaleTargetRef"]) == {"apiVersion", "kind", "name"}
    # Without an alpha feature it refuses 0.
    assert 1 == spec["minReplicas"] < spec["maxReplicas"]
    (metric,) = spec["metrics"]
    external = metric[metric["type"].lower()]
    assert external["metric"]["name"] == rule["name"]["as"]
    assert set(external["metric"]["selector"]["matchLabels"]) == {"queue"}
    assert external["target"] == {"type": "AverageValue", "averageValue": "50"}
    assert {"seriesQuery", "resources", "name", "metricsQuery"} == set(rule)
