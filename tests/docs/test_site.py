"""The site as a reader gets it: built, opened from a folder, searched. Skipped without mkdocs, which `tox -e docs` has."""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from celery_redis_plus.version import __version__
from tests.docs.blocks import ROOT
from tests.docs.questions import questions

#: Words of strangers, and where the answer is.
SEARCHES = {
    "send to all workers": "broadcasts.html#run-a-task-on",
    "pytest without redis": "testing.html",
    "max concurrent tasks": "consumers.html#concurrency",
    "redis restart": "operating.html#outages",
    "redis down": "operating.html#outages",
    "worker versions": "upgrading.html#upgrading",
    "windows": "install.html#requirements",
    "why task not running": "troubleshooting.html#a-task-is-lost",
    "WorkerLostError": "operating.html#crashed",
    "stop worker gracefully": "lifecycle.html#graceful",
    "nginx": "web.html#behind-nginx",
    "backup": "durability.html#backup",
    "sizing": "sizing.html",
    "connections per worker": "sizing.html#connections",
    "which retry": "retries.html",
    "misspelt queue name": "routing.html#a-misspelt",
    "uninstall": "upgrading.html#uninstalling",
    "canvas priority": "priorities.html#canvas",
    "rolling deploy": "upgrading.html",
    "upgrade without downtime": "upgrading.html",
    "alerting": "alerts.html",
    "lost task": "troubleshooting.html#a-task-is-lost",
    "task ran twice": "troubleshooting.html#a-task-runs-twice",
    "duplicate execution": "troubleshooting.html#a-task-runs-twice",
    "long eta": "delayed-tasks.html",
    "priority of a message": "priorities.html",
    "run on every worker": "broadcasts.html#run-a-task-on",
    "rate limit": "limiters.html",
    "one task per customer": "message-groups.html#one-task",
    "deduplicate": "retries.html#unique-tasks",
    "replay dead letters": "dead-letters.html#listing",
    "requeue failed messages": "dead-letters.html#listing",
    "redis cluster": "topologies.html#redis-cluster",
    "sentinel": "topologies.html#sentinel",
    "tls": "security.html#tls",
    "audit log": "command-line.html#who-did-what",
    "acl user": "security.html#least",
    "memory full": "operating.html#memory",
    "kubernetes probes": "kubernetes.html",
    "on_commit": "django.html#publishing",
    "flower": "flower.html",
    "prometheus": "metrics.html",
    "migrate from redis": "migration.html",
    "spark quickstart": "spark.html",
    "rollback": "upgrading.html",
    "connection refused": "troubleshooting.html#publishing",
    "queue full": "flow-control.html#bounded",
    "starvation": "priorities.html#starvation",
    "backpressure": "flow-control.html",
    "throughput": "sizing.html",
    "maxmemory policy": "operating.html#memory",
    "healthcheck": "web.html",
    "license": "install.html#requirements",
    "traceback": "dead-letters.html#the-exception",
    "stuck": "troubleshooting.html#a-task-is-lost",
    "scheduled task": "delayed-tasks.html",
    "singleton": "retries.html#unique-tasks",
    "graceful shutdown": "lifecycle.html#graceful",
    "exactly once": "guarantees.html#at-least-once",
    "poison message": "dead-letters.html#poison",
    "llen celery": "monitoring.html#queue-length",
    "queue length": "monitoring.html#queue-length",
    "python version": "install.html#requirements",
    "no such transport": "troubleshooting.html#the-worker-does-not-start",
    "acks_late": "guarantees.html#at-least-once",
    "personal data": "security.html#personal-data",
    "kill stuck task": "troubleshooting.html#a-task-is-lost",
    "namespace": "options.html#global_keyprefix",
    "autoscale": "kubernetes.html#how-many-workers",
    "executed two times": "troubleshooting.html#a-task-runs-twice",
    "duplicate task": "troubleshooting.html#a-task-runs-twice",
    "rerun failed tasks": "dead-letters.html#listing",
    "retry failed tasks": "dead-letters.html#listing",
    "purge by task name": "command-line.html#delete",
    "delete queued tasks by name": "command-line.html#delete",
    "erase customer data": "security.html#personal-data",
    "gdpr delete": "security.html#personal-data",
    "task history": "lifecycle.html#one-message",
    "getting started": "usage.html",
    "quickstart": "usage.html",
    "drain worker": "lifecycle.html#graceful",
    "rotate password": "security.html#passwords",
    "which worker ran task": "command-line.html#why-a-message",
    "queue does not exist": "routing.html#a-misspelt",
    "NOSCRIPT No matching script": "errors.html#serverunavailable",
    "WRONGTYPE Operation against a key": "errors.html#wrongkeytype",
    "LOADING dataset in memory": "errors.html#serverloading",
    "No nodes replied": "troubleshooting.html#celery-inspect",
    "task_time_limit": "troubleshooting.html#a-task-never-ends",
    "broker_transport_options": "options.html",
    "change queue limit": "policies.html#set-list",
    "rollback to kombu": "migration.html#going-back",
    "worker systemd": "production.html#a-systemd-unit",
    "unknown queue": "routing.html#a-misspelt",
    "find task by id": "command-line.html#messages-find",
    "OOM command not allowed": "errors.html#serveroutofmemory",
    "worker_prefetch_multiplier": "sizing.html#prefetch",
    "systemd unit": "production.html#a-systemd-unit",
    "who paused the queue": "command-line.html#who-did-what",
    "switch from redis broker": "migration.html",
    "go back to redis transport": "migration.html#going-back",
    "worker crash task lost": "troubleshooting.html#a-task-is-lost",
    "failover data loss": "topologies.html#data-loss",
    "change max length of existing queue": "policies.html",
    "memory per message": "sizing.html#memory",
    "back up queues": "durability.html#backup",
    "aof": "durability.html#backup",
    "server size": "sizing.html",
    "typo in queue name": "routing.html#a-misspelt",
    "best practices": "production.html",
    "servicemonitor": "kubernetes.html#the-exporter",
    "alertmanager": "alerts.html",
    "dlq": "dead-letters.html",
    "worker does not pick up tasks": "troubleshooting.html#a-task-is-lost",
    "redis memory keeps growing": "sizing.html#memory",
    "Received unregistered task of type": "troubleshooting.html#a-task-is-lost",
    "missed heartbeat from celery@": "troubleshooting.html#celerys-own",
    "Substantial drift from celery": "troubleshooting.html#celerys-own",
    "max number of clients reached": "errors.html#serverunreachable",
    "Connection reset by peer": "errors.html#serverunreachable",
    "Timeout reading from socket": "errors.html#servertimeout",
    "MISCONF Redis is configured to save RDB snapshots": "errors.html#serverunavailable",
    "BUSY Redis is busy running a script": "errors.html#serverunavailable",
    "ERR unknown command 'EVALSHA', with args beginning with:": "errors.html#commandunavailable",
    "CLUSTERDOWN The cluster is down": "errors.html#slotunavailable",
    "NOPERM this user has no permissions to run the 'evalsha' command": "errors.html#nopermission",
}

pytestmark = pytest.mark.skipif(not (find_spec("mkdocs") and find_spec("material")), reason="needs the extra docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def index(site):
    """Return the search index: its entries by address, one for each page and each heading."""
    entries = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    return {entry["location"]: entry for entry in entries}


def test_the_site_has_a_search_box_that_needs_no_server(site):
    start = (site / "index.html").read_text(encoding="utf-8")

    assert 'class="md-search__input"' in start
    # Browsers start no worker of a file: URL, so the search runs in a frame, and the index is a script.
    assert '<script src="assets/iframe-worker-shim.js"></script>' in start
    assert (site / "search/search_index.js").is_file()


def test_the_start_page_has_the_picture_of_a_message_and_leads_to_the_four_kinds(site):
    start = (site / "index.html").read_text(encoding="utf-8")

    assert 'src="assets/message.svg"' in start
    assert (site / "assets/message.svg").is_file()
    for kind in ("Tutorials", "How-to guides", "Reference", "Explanation"):
        assert f"<strong>{kind}</strong>: " in start


@pytest.mark.parametrize("question", questions(), ids=lambda question: question.text[:40])
def test_the_search_finds_the_answer_of_a_question(index, question):
    place = question.page.replace(".md", ".html") + (f"#{question.anchor}" if question.anchor else "")
    # An entry of a page has its text up to the first heading.
    entries = [entry for at, entry in index.items() if at == place or (not question.anchor and at.startswith(f"{place}#"))]
    found = " ".join(html.unescape(entry["title"] + " " + entry["text"]) for entry in entries).lower()

    assert place in index
    assert [word for word in question.words if word.lower() not in found] == []


@pytest.fixture(scope="module")
def searched(site):
    """Return the pages that the search box shows for each of SEARCHES, each as its headings."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node, to run the program of the search box")
    command = [node, str(ROOT / "tests/docs/site_search.js"), str(site)]
    process = subprocess.run(command, input=json.dumps(list(SEARCHES)), capture_output=True, text=True, check=True, timeout=60)
    return json.loads(process.stdout)


@pytest.mark.parametrize("query", SEARCHES)
def test_the_words_of_a_stranger_find_the_answer_among_the_first_three_pages(searched, query):
    assert any(heading.startswith(SEARCHES[query]) for page in searched[query][:3] for heading in page)


def test_the_pages_for_developers_come_behind_those_for_users_in_a_search(index):
    behind = {at.partition(".html")[0] for at, entry in index.items() if entry.get("boost", 1) < 1}

    assert {"changelog", "design/contract", "design/data", "design/0001-core"} <= behind
    assert behind.isdisjoint({"options", "operating", "retries", "guarantees"})


def test_each_page_has_the_version_and_the_changelog_is_one(site):
    assert f"Version {__version__}" in (site / "options.html").read_text(encoding="utf-8")
    changelog = (site / "changelog.html").read_text(encoding="utf-8")
    assert 'href="design/0015-sentinel.html"' in changelog


def test_the_site_follows_the_readers_choice_of_dark(site):
    start = (site / "index.html").read_text(encoding="utf-8")

    assert "(prefers-color-scheme: dark)" in start
    assert 'data-md-color-scheme="slate"' in start


def test_the_site_has_no_programs_of_its_making(site):
    assert [file for file in site.rglob("*") if file.suffix in {".py", ".pyc"} or file.name == "__pycache__"] == []


def test_nothing_of_the_site_is_loaded_from_elsewhere(site):
    start = (site / "index.html").read_text(encoding="utf-8")

    assert 'src="http' not in start
    assert "fonts.googleapis" not in start


def test_the_search_finds_a_topic_by_its_usual_word_in_a_heading(index):
    titles = " ".join(entry["title"] for entry in index.values()).lower()

    for word in (
        "deduplication",
        "prefetch",
        "monitoring",
        "migrating",
        "priorities",
        "metrics",
        "tls",
        "sentinel",
        "kubernetes",
        "django",
        "fastapi",
        "flower",
        "prometheus",
        "rolling back",
        "retry",
        "rate limit",
        "acl",
        "canvas",
        "backup",
        "uninstalling",
        "sizing",
        "production",
        "changelog",
    ):
        assert word in titles
