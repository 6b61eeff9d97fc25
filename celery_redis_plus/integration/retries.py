"""Retries of a task by the exception that it raised: `retry_on`, `dead_on`, `ignore_on`; and `snooze`.

Celery's own `retry()`, `autoretry_for` and `max_retries` go on as they are. A retry here is one of Celery's: a new message with
the task's id, the state RETRY, and `request.retries` one higher.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import current_app
from celery.exceptions import Ignore, Reject, Retry, TaskPredicate
from kombu import Queue

from celery_redis_plus.broker.arguments.deduplication import (
    ID,
    RETRY_OF,
    SCOPE,
    SNOOZES,
    TTL,
    TTL_SCOPE,
    UNTIL_STARTED,
)
from celery_redis_plus.broker.arguments.eta import MAX_DELAY_MS
from celery_redis_plus.broker.arguments.retry_policy import RetryPolicy
from celery_redis_plus.broker.consumers.last_error import failure_by
from celery_redis_plus.errors import InvalidArgument, OptionError, SnoozedTooOften
from celery_redis_plus.integration.ack_policies import POLICIES
from celery_redis_plus.transport.stored_json import TASK_DELIVERY, TASK_FENCE

#: Header with the errors of the tries before, and how many it keeps: the first one, and the latest.
ERRORS, MAX_ERRORS = "x-retry-errors", 10
#: Characters of each.
ERROR_LENGTH = 200
#: What a task that retries by exception has where its author chose no ack policy: its failure is a dead letter.
ACK_POLICY = "reject_on_error"
#: Milliseconds for which a retry stays known beyond its delay, so that a task that runs again is not retried twice.
REMEMBERED_MS = 86_400_000

#: How an author may say when a task is tried again.
_FORMS = "a retry policy, a number of seconds, a function of exception and number, or from_error()"


@dataclass(frozen=True, slots=True)
class RetryRule:
    """When a task is tried again after an exception: seconds by the number of the retry (from 1); None: not again."""

    delay_s: Callable[[BaseException, int, str], float | None]
    #: Retries at most; None: the task's `max_retries`.
    limit: int | None = None


def from_error(attribute: str, *, otherwise: str = "exponential first=1s max=10m", limit: int | None = None) -> RetryRule:
    """Return a rule by which a retry waits as long as the exception says.

    `retry_on={RateLimited: from_error("retry_after")}`.

    Args:
        attribute: of the exception: seconds, a timedelta, or a datetime with a time zone; a text of a number is one, too.
        otherwise: the retry policy for an exception that does not say it.
        limit: retries at most; None: the limit of `otherwise`, or else the task's `max_retries`.

    Raises:
        ValueError: `otherwise` is no retry policy.
    """
    fallback = _rule_of(otherwise)

    def delay_s(error: BaseException, number: int, message_id: str) -> float | None:
        seconds = _seconds(getattr(error, attribute, None))
        return fallback.delay_s(error, number, message_id) if seconds is None else seconds

    return RetryRule(delay_s, fallback.limit if limit is None else limit)


def snooze(delay: float | timedelta | datetime, reason: str = "", *, limit: int | None = 100) -> None:
    """Let the running task begin again later, by raising Celery's Retry: no failure, and none of its retries.

    The result has the state RETRY meanwhile. `request.headers["x-snoozes"]` counts.

    Args:
        delay: seconds until then, or a timedelta, or a datetime with a time zone.
        reason: what logs and the result's Retry say.
        limit: how often this message may be snoozed; None: for ever.

    Raises:
        celery.exceptions.Retry: it is snoozed. (In an eager task it then runs again at once, as a retry does, and counts as one.)
        SnoozedTooOften: it was snoozed `limit` times before; the task fails by it, unless it catches it.
        InvalidArgument: `delay` is no time from now on, within a hundred years; or no task of a worker runs here.
    """
    delay_s = _seconds(delay)
    if delay_s is None:
        raise InvalidArgument(
            f"argument 'delay' of snooze is {delay!r}; allowed: seconds from 0 on, a timedelta, a datetime with a time zone"
        )
    task = current_app.current_worker_task
    if task is None or task.request.called_directly:
        raise InvalidArgument("snooze() was called outside a task of a worker; allowed inside one, in the thread that runs it")
    before = int(_headers(task).get(SNOOZES, 0))
    if limit is not None and before >= limit:
        raise SnoozedTooOften(f"task {task.name}[{task.request.id}] was snoozed {before} times; argument 'limit' is {limit}")
    raise _sent_again(task, None, delay_s, task.request.retries, {SNOOZES: before + 1}, reason)


@dataclass(frozen=True, slots=True)
class _Options:
    """What a task says of its exceptions."""

    retry_on: Mapping[type[BaseException], RetryRule]
    dead_on: tuple[type[BaseException], ...]
    ignore_on: tuple[type[BaseException], ...]

    def rule(self, error: BaseException) -> RetryRule | None:
        """Return the rule of the nearest class that the exception is of."""
        return next((self.retry_on[kind] for kind in type(error).__mro__ if kind in self.retry_on), None)


def prepare(task: Any) -> None:
    """Have a task's `run` do what its options say; idempotent. Raises OptionError for one that is not allowed."""
    if getattr(task.run, "crp_retries", False):
        return
    options = _options_of(task)
    if getattr(task, "ack_policy", None) is None:
        task.ack_policy = ACK_POLICY
    elif options.dead_on and POLICIES.get(task.ack_policy, {}).get("failure") != "reject":
        raise OptionError(
            f"option dead_on of task {task.name!r} with ack_policy {task.ack_policy!r}, which makes no dead letters of failures; "
            f"allowed with {ACK_POLICY!r}"
        )
    original = task.run

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except TaskPredicate:
            # Celery's own: Retry, Ignore, Reject.
            raise
        except BaseException as error:
            if task.request.called_directly:
                raise
            again = _what_follows(task, options, error)
            if again is None:
                raise
            raise again from error

    run.crp_retries = True  # type: ignore[attr-defined]
    task.run = run


def _what_follows(task: Any, options: _Options, error: BaseException) -> TaskPredicate | None:
    """Return what a task raises in place of an exception: Ignore, Retry, Reject; None: the exception itself, a failure."""
    if isinstance(error, options.ignore_on):
        return Ignore(f"{type(error).__name__} (ignore_on)")
    if isinstance(error, options.dead_on):
        return None
    rule = options.rule(error)
    retries = task.request.retries
    limit = None if rule is None else task.max_retries if rule.limit is None else rule.limit
    if rule is None or (limit is not None and retries >= limit):
        return None
    delay_s = rule.delay_s(error, retries + 1, task.request.id or "")
    if delay_s is None:
        return None
    errors = [*_headers(task).get(ERRORS, ()), f"{_now()} {failure_by(error).text[:ERROR_LENGTH]}"]
    kept = errors if len(errors) <= MAX_ERRORS else [errors[0], *errors[-MAX_ERRORS + 1 :]]
    return _sent_again(task, error, delay_s, retries + 1, {ERRORS: kept})


def _sent_again(
    task: Any, error: BaseException | None, delay_s: float, retries: int, more: Mapping[str, Any], reason: str = ""
) -> TaskPredicate:
    """Publish a task's message for its next try, once, and return the Retry that the task has to raise.

    Where a worker dies behind the publish, before its ack, the message that was retried comes again, and is acked. A worker that
    was only taken for dead sends the retry once more, and that is refused as a duplicate. Where it cannot be published, the
    message goes back: Reject with requeue. Raises what the publish raises where it was acked before the task began.
    """
    request = task.request
    headers, properties = {**_headers(task), **more}, request.properties or {}
    tag = properties.get(TASK_FENCE, "").partition(" ")[0]
    if tag:
        headers[RETRY_OF] = tag
        # An id that stands for a time, or until the start, goes on without the retry.
        if ID not in headers or headers.get(SCOPE, TTL_SCOPE) in {UNTIL_STARTED, TTL_SCOPE}:
            headers |= {ID: f"retry of {tag}", SCOPE: "until-acked", TTL: REMEMBERED_MS}
    signature = task.signature_from_request(
        request, countdown=delay_s, retries=retries, headers=headers, **_back_to_queue(task, properties)
    )
    again = Retry(reason or None, exc=error, when=delay_s, is_eager=request.is_eager, sig=signature)
    if request.is_eager:
        return again
    try:
        signature.apply_async()
    except Exception as refused:
        if not properties.get(TASK_DELIVERY):
            # It was acked before the task began, so nothing goes back: the task fails by this.
            raise
        return Reject(refused, requeue=True)
    return again


def _back_to_queue(task: Any, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which a task is sent to the queue that its message came from, where Celery's own do not lead there.

    By its exchange a retry would come to all queues that are bound there, and of a broadcast to all subscribers: of ten workers
    that fail each would make ten retries of one.
    """
    queue = properties.get(TASK_FENCE, "").partition(" ")[2].partition(" ")[2]
    sent, known = task.request.delivery_info or {}, task.app.amqp.queues.get(queue)
    by_name = sent.get("routing_key") != queue or (known is not None and known.exchange.type == "direct")
    if not queue or (not sent.get("exchange") and by_name):
        return {}
    # Whoever declares that queue, or a route of the app, may do so with arguments that this app does not know.
    return {"queue": Queue(queue, no_declare=True), "exchange": "", "routing_key": queue}


def _headers(task: Any) -> dict[str, Any]:
    return dict(task.request.as_execution_options().get("headers") or {})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _options_of(task: Any) -> _Options:
    retry_on = getattr(task, "retry_on", None) or {}
    if not isinstance(retry_on, Mapping):
        raise OptionError(
            f"option retry_on of task {task.name!r} is {retry_on!r:.100}; allowed: a dict, from exception class to {_FORMS}"
        )
    rules = {}
    for kind, rule in retry_on.items():
        _check_classes(task, "retry_on", (kind,))
        try:
            rules[kind] = _rule_of(rule)
        except (TypeError, ValueError) as error:
            raise OptionError(f"option retry_on of task {task.name!r}, {kind.__name__}: {error}") from error
    classes = {}
    for name in ("dead_on", "ignore_on"):
        value = getattr(task, name, None) or ()
        classes[name] = _check_classes(
            task, name, tuple(value) if isinstance(value, tuple | list | set | frozenset) else (value,)
        )
    return _Options(rules, classes["dead_on"], classes["ignore_on"])


def _check_classes(task: Any, option: str, classes: tuple[Any, ...]) -> tuple[type[BaseException], ...]:
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise OptionError(f"option {option} of task {task.name!r} has {kind!r:.100}; allowed: classes of exceptions")
        if issubclass(kind, TaskPredicate):
            raise OptionError(f"option {option} of task {task.name!r} has Celery's {kind.__name__}; allowed: other exceptions")
    return classes


def _rule_of(rule: Any) -> RetryRule:
    """Return a rule from what an author wrote. Raises ValueError or TypeError."""
    if isinstance(rule, RetryRule):
        return rule
    if isinstance(rule, str):
        rule = RetryPolicy.parse(rule)
    if isinstance(rule, RetryPolicy):
        return RetryRule(lambda _, number, message_id: _delay_s(rule, number, message_id), rule.limit)
    seconds = _seconds(rule)
    if seconds is not None:
        return RetryRule(lambda *_: seconds)
    if callable(rule):
        return RetryRule(lambda error, number, _: _said(rule(error, number)))
    raise TypeError(f"{rule!r:.100}; allowed: {_FORMS}")


def _delay_s(policy: RetryPolicy, number: int, message_id: str) -> float | None:
    delay_ms = policy.delay_ms(number, message_id)
    return None if delay_ms is None else delay_ms / 1000


def _said(value: Any) -> float | None:
    """Return what a function of a user's has said. Raises InvalidArgument, which becomes the task's failure."""
    seconds = _seconds(value)
    if seconds is None and value is not None:
        raise InvalidArgument(f"a function in retry_on returned {value!r:.100}; allowed: seconds from 0 on, or None (no retry)")
    return seconds


def _seconds(value: Any) -> float | None:
    """Return a time as seconds from now on; None where it is none."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        return None if value.tzinfo is None else max(value.timestamp() - time.time(), 0.0)
    if hasattr(value, "total_seconds"):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value * 1000 <= MAX_DELAY_MS:
        return None
    return float(value)
