"""The command by which Spark starts its Python processes on this machine.

Spark puts its own modules before all others on their path, as a zip. Python compiles what it imports from a zip at each start:
0.7 of 1.1 s of CPU. Spark waits for a stream's process for ten seconds, which no setting changes, so that a query could not
start on two cores with a load of 15. The same modules are installed beside this package, compiled.
Sources: org.apache.spark.api.python.PythonUtils.sparkPythonPath, PythonWorkerFactory.createSimpleWorker
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

_SCRIPT = """\
#!/bin/sh
rest=$PYTHONPATH: kept=
while [ -n "$rest" ]; do
  entry=${rest%%:*} rest=${rest#*:}
  case $entry in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept=$kept:$entry ;;
  esac
done
PYTHONPATH=${kept#:} exec @PYTHON@ "$@"
"""


@functools.cache
def python_command() -> str:
    """Return a program that starts this Python without Spark's zips; this Python itself where Spark is another one's."""
    home, installed = os.environ.get("SPARK_HOME"), find_spec("pyspark")
    if installed is None or installed.origin is None:
        return sys.executable
    if home and Path(home).resolve() != Path(installed.origin).resolve().parent:
        return sys.executable
    directory = Path(tempfile.mkdtemp(prefix="celery-redis-plus-python-"))
    atexit.register(_remove, directory, os.getpid())
    script = directory / "python"
    script.write_text(_SCRIPT.replace("@PYTHON@", shlex.quote(sys.executable)), encoding="utf-8")
    script.chmod(0o700)
    return str(script)


def _remove(directory: Path, owner: int) -> None:
    # A forked process ends earlier than the one whose it is.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
