"""The pages of the pipeline: the Python blocks run, one after the other, and every column of the tables is named."""

from __future__ import annotations

import argparse
import re
import shlex
from urllib.request import urlopen

import pytest
import yaml

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from celery_redis_plus.spark import ingest, tables
from celery_redis_plus.spark.health import Health, served
from celery_redis_plus.spark.job_arguments import add_arguments
from celery_redis_plus.spark.manifest import TABLES
from tests.docs.blocks import ROOT, of_page

PAGE, OPERATION = ROOT / "docs" / "spark.md", ROOT / "docs" / "spark-operation.md"
ADDRESS = "localhost:6379/0"


def test_the_blocks_run_and_the_columns_are_named(spark, broker_url, tmp_path, monkeypatch, redis_client):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in of_page(PAGE) if block.language == "python"]
    assert len(blocks) >= 5
    # As in one notebook.
    names = {"__name__": "__main__"}
    for number, block in enumerate(blocks):
        # Java does not follow `chdir`.
        code = block.code.replace(ADDRESS, broker_url.partition("://")[2]).replace('"dead', f'"{tmp_path}/dead')
        exec(compile("\n" * (block.line - 1) + code, str(PAGE), "exec"), names)
        if number == 0:
            ingest.run_once(spark, tmp_path / "tables", {"url": broker_url})
            tables.aggregate(spark, tmp_path / "tables")

    assert tables.read(spark, tmp_path / "tables", "messages").count() == 100
    text = PAGE.read_text(encoding="utf-8")
    named = {column for table in TABLES for column in tables.read(spark, tmp_path / "tables", table).columns}
    assert {column for column in named if f"`{column}`" not in text} == set()


def test_the_command_of_the_service_is_understood():
    (unit,) = re.findall(r"^ExecStart=\S+ spark (.+)$", OPERATION.read_text(encoding="utf-8"), re.MULTILINE)
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    arguments = parser.parse_args(shlex.split(unit))
    assert (arguments.job, arguments.url_env, arguments.fresh) == ("run", "BROKER_URL", 30)


def test_the_pod_is_understood_and_ends_in_time():
    (block,) = (block for block in of_page(OPERATION) if block.language == "yaml")
    deployment = yaml.safe_load(block.code)
    spec = deployment["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}, "two pods on a folder are refused"
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert pod["terminationGracePeriodSeconds"] > 10, "`run` ends within ten seconds"

    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    assert container["command"][:2] == ["celery-redis-plus", "spark"]
    arguments = parser.parse_args([*container["command"][2:], *container["args"]])
    assert arguments.url_env in {variable["name"] for variable in container["env"]}
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    assert str(arguments.root) == mount["mountPath"]
    assert mount["name"] == volume["name"]
    assert volume["persistentVolumeClaim"]["claimName"]

    (port,) = container["ports"]
    probe = container["livenessProbe"]["httpGet"]
    assert probe["port"] == port["name"]
    assert arguments.listen == f"0.0.0.0:{port['containerPort']}"
    # By what it answers: a broker that is away is no reason to kill the pod.
    with served("127.0.0.1:0", lambda: Health(wanted_s=arguments.fresh)) as at:
        assert urlopen(f"http://127.0.0.1:{at}{probe['path']}", timeout=30).status == 200
