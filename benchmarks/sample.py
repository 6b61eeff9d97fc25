"""One sample in a fresh process: ``python -m benchmarks.sample`` with a JSON request on stdin."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from pathlib import Path

from benchmarks.bench import Bench, MeasurementError
from benchmarks.contenders import Contender, register_transports
from benchmarks.measurements import MEASUREMENTS


def main() -> int:
    """Take the sample; the last line on stdout is the answer."""
    request = json.load(sys.stdin)
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    if request["core"] is not None and sys.platform == "linux":
        os.sched_setaffinity(0, {request["core"]})
    register_transports()
    bench = Bench(
        contender=Contender(**request["contender"]),
        quick=request["quick"],
        server_address=request["server_address"],
        directory=Path(request["directory"]),
    )
    try:
        figures = MEASUREMENTS[request["measurement"]].load()(bench)
    except MeasurementError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    except Exception as error:  # noqa: BLE001 - reported, with its traceback
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return 1
    print(json.dumps({"figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
