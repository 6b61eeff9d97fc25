"""The options of the sink `celery_task`, each once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from celery_redis_plus import option_types as kinds
from celery_redis_plus.broker.arguments.deduplication import LONGEST_TTL_MS
from celery_redis_plus.errors import OptionError
from celery_redis_plus.spark.option_parsing import option, parse_options, resolve_url


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write or writeStream.

    Raises:
        OptionError: an option is unknown, missing or not allowed; the message says what is.
    """

    url: str = option(kinds.text(), "", "The broker's URL. It may hold no password: see `urlEnv`.")
    url_env: str = option(kinds.text(), "", "An environment variable that holds the URL, on driver and executors.")
    prefix: str = option(kinds.text(), "", "The application's `global_keyprefix`, if it is not in the URL.")
    task: str = option(kinds.text(), "", "The task's name.")
    task_column: str = option(kinds.text(), "", "A column with the task's name, instead of `task`.")
    queue: str = option(kinds.text(), "celery", "The queue.")
    queue_column: str = option(kinds.text(), "", "A column with the queue, instead of `queue`.")
    id_column: str = option(
        kinds.text(), "", "Required: a column that identifies the row. The task id follows from it, so that no row is sent twice."
    )
    sink_name: str = option(
        kinds.text(),
        "",
        "What the ids are made with besides (default: the task's name). Another name sends the same rows again.",
    )
    args_column: str = option(kinds.text(), "", "A column with the positional arguments: an array, or JSON text.")
    kwargs_column: str = option(kinds.text(), "", "A column with the keyword arguments: a struct, a map, or JSON text.")
    priority_column: str = option(kinds.text(), "", "A column with the priority, 0-255.")
    eta_column: str = option(kinds.text(), "", "A column with the earliest time of the task; without a zone it is UTC.")
    countdown_column: str = option(kinds.text(), "", "A column with seconds from now, instead of `etaColumn`.", unit="s")
    expires_column: str = option(
        kinds.text(), "", "A column with the time after which the task does not run, or with seconds from now."
    )
    group_column: str = option(kinds.text(), "", "A column with the id of the task's group.")
    headers_column: str = option(
        kinds.text(), "", "A column with further headers: a struct, a map, or JSON text. They replace none of Celery's own."
    )
    rate_limit: float | None = option(kinds.number(0.01), None, "Tasks a second that each Spark task sends at most.", unit="1/s")
    dedup_ttl: float = option(
        kinds.number(1, LONGEST_TTL_MS // 1000), 604_800.0, "How long the broker knows a row again.", unit="s"
    )
    patience: float = option(kinds.number(0), 600.0, "How long to wait for room in a full queue before failing.", unit="s")

    @classmethod
    def from_mapping(cls, given: Mapping[str, str]) -> Self:
        """Return the options that a query was given."""
        options = parse_options(cls, given, "celery_task")
        if not options.id_column:
            raise OptionError("option idColumn is missing: name a column that identifies the row, so that no row is sent twice")
        if bool(options.task) == bool(options.task_column):
            raise OptionError("give either task (its name) or taskColumn")
        if not options.queue and not options.queue_column:
            raise OptionError("option queue is empty: name a queue, or give queueColumn")
        if options.eta_column and options.countdown_column:
            raise OptionError("give etaColumn or countdownColumn, not both")
        return options

    def columns(self) -> list[str]:
        """Return the columns that are read."""
        return [
            getattr(self, field.name) for field in fields(self) if field.name.endswith("_column") and getattr(self, field.name)
        ]

    def resolved_url(self) -> str:
        """Return the URL, in the driver or in an executor."""
        return resolve_url(self.url, self.url_env)
