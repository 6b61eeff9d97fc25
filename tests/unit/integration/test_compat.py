"""What is said where a version of Celery does not have an internal name that this package uses."""

import subprocess
import sys

import pytest

from celery_redis_plus import internals as internals_module
from tests.integration.celery_patches.app_of_another_version import VARIABLE, internals

APP = "tests.integration.celery_patches.app_of_another_version"


REQUIRED = [name for name, internal in internals().items() if not internal.without]


OPTIONAL = [name for name, internal in internals().items() if internal.without]


@pytest.mark.parametrize("constant", OPTIONAL)
def test_an_optional_name_that_is_missing_is_named_once_with_what_is_off(constant, caplog, monkeypatch):
    monkeypatch.setattr(internals_module, "_reported", set())
    internal = internals()[constant]

    assert internal.of(object(), "default") == "default"
    assert internal.of(object()) is None
    (message,) = caplog.messages
    for part in (internal.where, repr(internal.name), "celery 5.", "billiard 4.", "celery<5.8", f"Off: {internal.without}"):
        assert part in message


def configure(constant, *arguments):
    script = (
        f"import os; os.environ[{VARIABLE!r}] = {constant!r}\n"
        f"import {APP}\n"
        "from celery import Celery\n"
        "from celery_redis_plus import configure_app\n"
        "app = configure_app(Celery('x', broker='redis://127.0.0.1:1', set_as_current=False))\n"
        "from celery_redis_plus.integration.ack_policies import AckPolicies\n"
        "from celery_redis_plus.integration.requests import install_request_class\n"
        "install_request_class(app, AckPolicies('manual', {}))\n"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("constant", REQUIRED)
def test_a_required_name_that_is_missing_is_refused_in_one_sentence(constant):
    ended = configure(constant)
    internal = internals()[constant]

    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"celery_redis_plus.errors.UnsupportedVersion: {internal.where} has no 'renamed_{internal.name}' (celery"
    )
    assert "allowed: " in last
