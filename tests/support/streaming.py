"""Runs a streaming query to its end on a machine that has other work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

#: Spark gives the Python process of a streaming source ten seconds to start, and no setting changes that
#: (`PythonWorkerFactory.createSimpleWorker` of Spark 4.3). It computes for half a second: at a load of 20 it is late.
LATE = "Python worker failed to connect back"
TRIES = 3


def finish(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, wait until it has read everything, and return it; where its process was late, let it go on, as users do.

    Args:
        start: starts it, from its checkpoint where there is one.

    Raises:
        StreamingQueryException: it failed otherwise, or its process was late each time.
    """
    from pyspark.errors import StreamingQueryException

    tries_left = TRIES
    while True:
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            tries_left -= 1
            if not tries_left or LATE not in str(error):
                raise
        else:
            return query
