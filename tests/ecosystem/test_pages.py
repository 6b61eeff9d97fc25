"""The pages on Django, FastAPI and RedBeat: their programs run as they stand there, beside the packages that they are about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from celery_redis_plus.keys import Keys
from tests.docs.blocks import ROOT, of_page

ADDRESS = "localhost:6379/0"
#: What `django-admin startproject` writes besides, as far as the page needs it.
SETTINGS = """
SECRET_KEY = "a test"
INSTALLED_APPS = ["shop"]
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""
TASKS = """
from celery import shared_task


@shared_task(name="shop.ship")
def ship(order):
    print("shipped", order, flush=True)
"""
ACCEPT = """
import os
import time

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
import django

import shop.celery

django.setup()
from shop.orders import accept

accept(1)
"""
REQUESTS = """
from fastapi.testclient import TestClient

with TestClient(api) as client:
    assert client.post("/orders/1").json()["task"] != client.post("/invoices/2").json()["task"]
"""


@pytest.fixture
def blocks_of(broker_url):
    """Return the Python blocks of a page, with the test's server for the page's."""

    def find(name: str) -> list[str]:
        page = of_page(ROOT / "docs" / name, all_of_them=True)
        return [block.code.replace(ADDRESS, broker_url.partition("://")[2]) for block in page if block.language == "python"]

    return find


def run(code: str, folder: Path) -> str:
    (folder / "program.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    command = [sys.executable, "program.py"]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_django_project_publishes_after_the_commit(blocks_of, redis_client, tmp_path):
    pytest.importorskip("django", reason="Django is not installed: tox -e ecosystem")
    project = tmp_path / "shop"
    project.mkdir()
    for name, code in {"__init__.py": "from shop.celery import app as app\n", "tasks.py": TASKS}.items():
        (project / name).write_text(code)
    for code in blocks_of("django.md"):
        name = code.partition("\n")[0].removeprefix("# shop/")
        (project / name).write_text(code + SETTINGS * (name == "settings.py"))

    run(ACCEPT, tmp_path)

    # With the prefix of the page's settings.
    assert redis_client.zcard(Keys("shop:").queue("celery").ready) == 1


def test_the_routes_of_fastapi_publish(blocks_of, redis_client, tmp_path):
    pytest.importorskip("fastapi", reason="FastAPI is not installed: tox -e ecosystem")
    (code,) = blocks_of("asyncio.md")

    run(code + REQUESTS, tmp_path)

    assert redis_client.zcard(Keys().queue("celery").ready) == 2


def test_redbeat_keeps_its_entry_beside_the_broker(blocks_of, redis_client, tmp_path):
    pytest.importorskip("redbeat", reason="celery-redbeat is not installed: tox -e ecosystem")
    (code,) = (code for code in blocks_of("beat.md") if "redbeat" in code)

    run(code, tmp_path)

    assert redis_client.exists("redbeat:refresh")
