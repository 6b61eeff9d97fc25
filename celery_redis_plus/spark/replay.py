"""Sends messages of the table `messages` again: dead letters, or any selection, with their archived payloads."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.spark import tables
from celery_redis_plus.spark.sink_rows import NAMESPACE
from celery_redis_plus.stored_message import BODY_SEPARATOR, UnreadableMessageError, read_envelope, replayed
from celery_redis_plus.transport.once_sender import OnceSender

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

#: Headers that tell of the life that is over: the message is sent as a new one.
_OVER = ("x-death", "x-first-death", "x-last-death", "x-delivery-count", "x-acquired-count")
_OVER_PROPERTIES = frozenset({"delivery_tag", "delivery_info"})


@dataclass(frozen=True)
class Replayed:
    """What a replay did, or would do.

    Attributes:
        selected: messages that the condition chose.
        without_payload: of them, those whose payload is not archived, or whose body is too large for an event (over 1 MB); they
            cannot be sent.
        sent: messages that the broker has stored; those that it knew under the replay's name are not, nor those that cannot be
            read, which the executor's log names. 0 in a dry run.
    """

    selected: int
    without_payload: int
    sent: int


@dataclass(frozen=True)
class Destination:
    """Where a replay goes.

    Attributes:
        url: the broker's URL; `url_env` instead names an environment variable with it, on every node.
        prefix: the application's `global_keyprefix`.
        queue: the queue for all of them; '' is each message's own.
        name: of the replay: a message is sent once under each name.
        remember_s: how long the broker knows them again, seconds.
    """

    url: str = ""
    url_env: str = ""
    prefix: str = ""
    queue: str = ""
    name: str = ""
    remember_s: float = 604_800

    def resolved_url(self) -> str:
        """Return the URL, in the driver or in an executor."""
        from celery_redis_plus.spark.option_parsing import resolve_url

        return resolve_url(self.url, self.url_env)


def replay(spark: SparkSession, root: str | Path, where: str, destination: Destination, *, dry_run: bool = False) -> Replayed:
    """Send the messages that the SQL condition `where` chooses from `messages`.

    Run again, after a crash or by mistake, it sends nothing a second time: the broker knows each message under the replay's name.

    Raises:
        InvalidArgument: the condition cannot be understood, or none of the chosen messages has a payload.
        TablesUnusable: there is no such table in `root`.
    """
    chosen = _chosen(tables.read(spark, root, "messages"), where).select("queue", "id")
    published = tables.read(spark, root, "events").where("event = 'published'")
    # A large body is no part of its event: the envelope alone cannot be sent.
    whole = sf.when(sf.contains(sf.col("payload"), sf.lit(bytearray(BODY_SEPARATOR))), sf.col("payload"))
    payloads = published.select("queue", "id", whole.alias("payload"))
    rows = chosen.join(payloads, ["queue", "id"], "left").cache()
    try:
        selected, without = rows.count(), rows.where("payload is null").count()
        if selected and selected == without:
            raise InvalidArgument(
                f"none of the {selected:,} messages has an archived payload; switch event_log_payload on, for messages to come"
            )
        if dry_run:
            return Replayed(selected, without, 0)
        sendable = rows.where("payload is not null")
        sent = sendable.mapInArrow(_sending(destination), "sent bigint").groupBy().sum("sent").first()
        return Replayed(selected, without, (sent[0] if sent else 0) or 0)
    finally:
        rows.unpersist()


def _chosen(messages: DataFrame, where: str) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    try:
        with _unlogged():
            return messages.where(where)
    except (AnalysisException, ParseException) as error:
        said = str(error).strip().partition("\n")[0]
        raise InvalidArgument(f"condition {where!r}: {said}; columns: {', '.join(messages.columns)}") from None


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep Spark's Python part from logging an error that it raises, with 8 KB of Java's trace."""
    from pyspark.logger import PySparkLogger

    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _sending(destination: Destination) -> Any:
    def send(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        with OnceSender(destination.resolved_url(), prefix=destination.prefix, remember_s=destination.remember_s) as sender:
            for batch in batches:
                for row in batch.to_pylist():
                    try:
                        _send(sender, row, destination)
                    except UnreadableMessageError as unreadable:
                        logger.warning(
                            "message %s of queue %r is not replayed, it cannot be read: %r", row["id"], row["queue"],
                            unreadable.error, extra={"queue": row["queue"], "tag": row["id"]},
                        )  # fmt: skip
        yield pa.record_batch({"sent": pa.array([sender.stored], pa.int64())})

    return send


def _send(sender: OnceSender, row: dict[str, Any], destination: Destination) -> None:
    line, _, body = row["payload"].partition(BODY_SEPARATOR)
    envelope = read_envelope(line)
    headers, properties = replayed(envelope["headers"], envelope["properties"])
    headers = {name: value for name, value in headers.items() if not name.startswith(_OVER)}
    properties = {name: value for name, value in properties.items() if name not in _OVER_PROPERTIES}
    if "retries" in headers:
        # It starts as a first try: a retry's message would exist beside the earlier one.
        headers["retries"] = 0
    sender.send(
        destination.queue or row["queue"],
        str(uuid.uuid5(NAMESPACE, f"replay:{destination.name}:{row['queue']}:{row['id']}")),
        body,
        headers=headers,
        properties=properties,
        content_type=envelope.get("content-type", ""),
        content_encoding=envelope.get("content-encoding", ""),
        source_id=row["id"],
    )
