"""The page of the pipeline: its Python blocks run, one after the other, and it names every column of the tables."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from celery_redis_plus.spark import ingest, tables
from celery_redis_plus.spark.manifest import TABLES
from tests.docs.blocks import ROOT, of_page
from tests.support.streaming import finish

PAGE = ROOT / "docs" / "spark.md"
ADDRESS = "localhost:6379/0"


def test_the_blocks_run_and_the_columns_are_named(spark, broker_url, tmp_path, monkeypatch, redis_client):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in of_page(PAGE) if block.language == "python"]
    assert len(blocks) >= 5
    for number, block in enumerate(blocks):
        # Java does not follow `chdir`.
        code = block.code.replace(ADDRESS, broker_url.partition("://")[2]).replace('"dead', f'"{tmp_path}/dead')
        exec(compile("\n" * (block.line - 1) + code, str(PAGE), "exec"), {"__name__": "__main__"})
        if number == 0:
            finish(lambda: ingest.start(spark, tmp_path / "tables", {"url": broker_url}, once=True))
            tables.aggregate(spark, tmp_path / "tables")

    assert tables.read(spark, tmp_path / "tables", "messages").count() == 100
    text = PAGE.read_text(encoding="utf-8")
    named = {column for table in TABLES for column in tables.read(spark, tmp_path / "tables", table).columns}
    assert {column for column in named if f"`{column}`" not in text} == set()
