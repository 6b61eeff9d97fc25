"""The suites themselves, from the source distributions of the installed kombu and Celery."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: What a suite needs of a source distribution: its tests and its pytest configuration. Not the package: the
#: installed one is tested.
WANTED = ("t", "setup.cfg", "pyproject.toml")


class SourcesUnavailableError(RuntimeError):
    """A source distribution could not be downloaded. Is the package index reachable (`pip download`)?"""


def fetch(distributions: Iterable[str], into: Path) -> dict[str, Path]:
    """Download the source distributions of the installed versions and unpack their tests.

    Args:
        distributions: names of installed packages, e.g. `kombu`.
        into: an existing folder, which gets one folder a package.

    Returns:
        For each package the folder that contains `t/`.

    Raises:
        SourcesUnavailableError: pip could not download them.
    """
    names = list(distributions)
    pins = [f"{name}=={importlib.metadata.version(name)}" for name in names]
    # Only these are wanted as sources: what pip needs to read their metadata (setuptools) may come as wheels.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", ",".join(names), "--dest", str(into), *pins]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SourcesUnavailableError(f"{SourcesUnavailableError.__doc__}\n{done.stderr.strip()}")
    return {name: _unpack(_archive_of(pin, into), into / name) for name, pin in zip(names, pins, strict=True)}


def _archive_of(pin: str, folder: Path) -> Path:
    name, version = pin.split("==")
    return folder / f"{name}-{version}.tar.gz"


def _unpack(archive: Path, into: Path) -> Path:
    with tarfile.open(archive) as sources:
        sources.extractall(into, members=_wanted(sources), filter="data")
    return into


def _wanted(sources: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in sources.getmembers():
        _, *inside = PurePosixPath(member.name).parts
        if inside and inside[0] in WANTED:
            yield member.replace(name=str(PurePosixPath(*inside)), deep=False)
