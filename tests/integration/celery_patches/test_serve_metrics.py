"""Where metrics cannot be served."""

from __future__ import annotations

import logging
import socket
import sys

import pytest

from celery_redis_plus.errors import OptionError
from celery_redis_plus.integration.worker_metrics import serve_metrics
from celery_redis_plus.options import Options


def test_a_port_that_is_taken_is_logged_and_the_worker_goes_on(caplog):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert serve_metrics(Options(metrics_port=port)) is None
    assert caplog.record_tuples[0][1] == logging.ERROR
    assert f"metrics_port={port}: no metrics are served" in caplog.text
    assert "a free port" in caplog.text


def test_without_prometheus_client_the_extra_is_named(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert serve_metrics(Options(metrics_port=0)) is None
    assert "pip install 'prometheus-client>=0.20'" in caplog.text


def test_without_a_port_nothing_is_served():
    assert serve_metrics(Options()) is None


def test_a_port_out_of_range_is_refused():
    with pytest.raises(OptionError, match="metrics_port=70000 is not allowed"):
        Options(metrics_port=70_000)
