"""The tasks of the pipeline's demo, and the ledger that they write; without Spark."""

import pytest

from celery_redis_plus.demo.pipeline.app import LEDGER, QUEUES, Fate, app, fate_of, task_of
from celery_redis_plus.demo.records import count, read
from celery_redis_plus.testing import pointed_at, running_worker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

NUMBERS = (0, 5, 8, 20)


def test_each_task_notes_its_begin_and_how_it_ends(broker_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pointed_at(app, broker_url, "disabled://"), running_worker(app, queues=QUEUES):
        for number in NUMBERS:
            app.send_task(task_of(number), (number,), queue=QUEUES[0])
        # The second is retried twice.
        wait_until(lambda: count(tmp_path, LEDGER) == 2 * (len(NUMBERS) + 2))

    records = read(tmp_path, LEDGER)
    assert {record["number"]: record["fate"] for record in records if "fate" in record} == {
        number: fate_of(number, attempt=2) for number in NUMBERS
    }
    assert sum(record.get("fate") == Fate.RETRY for record in records) == 2
    assert len({record["id"] for record in records}) == len(NUMBERS) + 2
    assert records[-1:] == read(tmp_path, LEDGER, last=1)
