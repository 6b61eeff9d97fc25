"""What older PySparks lack: 4.0 and 4.1 know no limits of a micro-batch, 4.0 no filters of a source, no batches of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import datasource

from celery_redis_plus.errors import InvalidArgument

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    HAS_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef] # Spark itself reads up to the end of the beginning then
        """Nothing."""
else:
    HAS_LIMITS = True
try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:
    # It is handed rows.
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter
HAS_FILTERS = hasattr(datasource, "EqualTo")

if TYPE_CHECKING:
    from celery_redis_plus.spark.source_options import SourceOptions

__all__ = ["HAS_LIMITS", "DataSourceStreamArrowWriter", "SupportsTriggerAvailableNow", "check_options", "limit_of", "most_rows"]


def check_options(options: SourceOptions) -> None:
    """Refuse what this PySpark cannot do.

    Raises:
        InvalidArgument: it lacks what an option needs; the message says since when it is there.
    """
    needs = {
        "maxOffsetsPerTrigger": (options.max_offsets_per_trigger is not None, HAS_LIMITS, "4.2"),
        "maxBytesPerTrigger": (options.max_bytes_per_trigger is not None, HAS_LIMITS, "4.2"),
        "minOffsetsPerTrigger": (options.min_offsets_per_trigger is not None, HAS_LIMITS, "4.2"),
        "pushFilters": (options.push_filters, HAS_FILTERS, "4.1"),
    }
    for name, (given, is_there, since) in needs.items():
        if given and not is_there:
            raise InvalidArgument(f"option {name} needs PySpark {since} or later, here is {pyspark.__version__}; leave it out")


def limit_of(rows: int | None) -> Any:
    """Return Spark's limit of a micro-batch of so many rows; None is no limit."""
    return ReadAllAvailable() if rows is None else ReadMaxRows(rows)


def most_rows(limit: Any) -> int | None:
    """Return the rows of a limit of Spark's; None where it has none."""
    return limit.max_rows if HAS_LIMITS and isinstance(limit, ReadMaxRows) else None
