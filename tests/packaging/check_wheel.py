"""Builds the distribution as a release would, and runs a task where nothing else is installed.

Usage: python check_wheel.py DIRECTORY. A file that is missing from the sdist or the wheel cannot pass: the
wheel is built from the sdist, installed into an empty environment, and used away from the source tree.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WEB = ROOT / "celery_redis_plus/cli/web"
WEB_FILES = {path.relative_to(ROOT).as_posix() for folder in ("templates", "static") for path in (WEB / folder).iterdir()}
SQL_FILES = {path.relative_to(ROOT).as_posix() for path in (ROOT / "celery_redis_plus/spark/sql").iterdir()}
#: The package and the distribution's metadata: no other top-level module.
OURS = ("celery_redis_plus/", "redisplus_celery-")
SCRIPTS = {path.relative_to(ROOT / "lua").as_posix() for path in (ROOT / "lua").rglob("*.lua")}


def main() -> None:
    directory = Path(sys.argv[1]).resolve() / "check-wheel"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    wheel = build(directory / "dist")
    python = install(wheel, directory / "venv")
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(Path(__file__).with_name("smoke.py"), elsewhere)
    run([str(python), "smoke.py"], cwd=elsewhere)


def build(directory: Path) -> Path:
    """Build an sdist and a wheel from it; return the wheel. Check that both hold every script, and the files of the web page."""
    run([sys.executable, "-m", "build", "--outdir", str(directory), str(ROOT)])
    (sdist,) = directory.glob("*.tar.gz")
    (wheel,) = directory.glob("*.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        require({f"lua/{name}" for name in SCRIPTS} <= names, f"{sdist.name} lacks Lua scripts")
        require(names >= WEB_FILES, f"{sdist.name} lacks files of the web page")
        require(names >= SQL_FILES, f"{sdist.name} lacks views")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        require({f"celery_redis_plus/lua/{name}" for name in SCRIPTS} <= names, f"{wheel.name} lacks Lua scripts")
        require(names >= WEB_FILES, f"{wheel.name} lacks files of the web page")
        require(names >= SQL_FILES, f"{wheel.name} lacks views")
        foreign = {name for name in names if not name.startswith(OURS)}
        require(not foreign, f"{wheel.name} installs what is not ours: {sorted(foreign)}")
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
        dead = re.findall(r"\]\((?!https?:|#)[^)]*\)", metadata)
        require(not dead and "# celery-redis-plus" in metadata, f"{wheel.name} is described with links that lead nowhere: {dead}")
    return wheel


def install(wheel: Path, directory: Path) -> Path:
    """Install the wheel with its extra `demo` into a new environment and return that environment's Python."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    run([str(python), "-m", "pip", "install", "--quiet", f"{wheel}[demo]"])
    run([str(python), "-m", "pip", "check"])
    return python


def run(command: list[str], cwd: Path | None = None) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, cwd=cwd, check=True, timeout=600)


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    main()
