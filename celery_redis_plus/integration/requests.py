"""Celery's requests, with what our broker wants to know: how the work ended, and which ack policy decides; and when they settle.

Celery settles through `Request.acknowledge` and `Request.reject` (5.6, 5.7); everything it does besides (results, signals,
events) stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.common import TERM_SIGNAME
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded, WorkerLostError
from celery.platforms import signals
from kombu.utils.imports import symbol_by_name

from celery_redis_plus.broker.consumers.acks import NotAckedError
from celery_redis_plus.broker.consumers.last_error import Failure, failure_of, text_of
from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.ack_policies import ACK, POLICIES, REQUEUE, AckPolicies
from celery_redis_plus.integration.batched_tasks import collects
from celery_redis_plus.integration.lease_guard import has_lease, refuse_unacked, was_given_back
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.integration.unhandled_messages import DATA_ERRORS, TaskLostError
from celery_redis_plus.integration.worker_settlements import children, settled_by_task
from celery_redis_plus.transport.kombu_message import Message

if TYPE_CHECKING:
    from celery.worker.request import Request
else:
    # A task may have a class of requests of its own.
    Request = object

logger = logging.getLogger(__name__)

#: Ending -> reason of the event `acked`, where the two differ.
ACK_REASONS = {"success": "", "time_limit": "failure", "worker_lost": "failure", "rejected": "", "requeue": ""}
#: Exceptions that are not stored: the ending says enough.
UNRECORDED_ERRORS = (Retry, Ignore)
#: Endings of which the events tell although the message was acked before: the task failed, or another message continues it.
LATE_ENDINGS = ("failure", "time_limit", "worker_lost", "rejected", "retry")

#: Celery's settings that decide how a late-acked task is settled, by their names in 5.6 and 5.7.
LATE_SETTLEMENTS = {
    "acks_late": True,
    "acks_on_failure_or_timeout": True,
    "acks_on_failure": True,
    "acks_on_timeout": True,
    "reject_on_worker_lost": True,
}


class BrokerRequest(Request):
    """Mixed into a task's own class of requests."""

    #: Whether policies may decide; set by `install_request_class`.
    crp_policies: AckPolicies | None = None
    #: What the task's settings were before.
    crp_settings: Mapping[str, Any] | None = None
    #: Whether the pool begins tasks in threads of its own, where they may have waited for long.
    crp_waits_in_pool = False
    _crp_ending = "success"
    #: Its greenlet is being killed.
    _crp_killed = False
    _crp_acked_early = False
    #: Whether the work begins in this process, after `on_accepted`; a process of a prefork pool has begun it before.
    crp_begins_here = False
    #: The events tell that it failed after its ack.
    _crp_failure_told = False

    # -- what Celery calls ------------------------------------------------------------------------------------------------

    @property
    def eta(self) -> Any:
        """When to begin; None is now: the broker delivers what is due, and a worker's clock may go behind the server's."""
        message = self.message
        held = isinstance(message, Message) and message.headers.get("eta")
        return None if held else super().eta

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Tell the broker that the work begins, and ack before it where that is wanted.

        Raises:
            TaskLostError: its message went back, or another consumer has it by now; it expired in the pool's own queue; or its
                early ack could not leave. The pool goes on with its next task.
        """
        if self.crp_waits_in_pool and (was_given_back(self) or not has_lease(self) or self.revoked()):
            raise TaskLostError(self.id)
        message = self.message
        if isinstance(message, Message):
            message.begin(acked_early=self.crp_acks_early())
            message.delivered_by.consumer_session.service.unhandled_in_a_row = 0
        try:
            super().on_accepted(pid, time_accepted)
        except DATA_ERRORS as error:
            # Celery counts it by its name, which is a list. The pool goes on with it.
            logger.warning("task %r has begun, and Celery cannot note it: %s", self.id, error, extra={"task_id": self.id})
            if not self.task.acks_late and isinstance(message, Message) and not message.acknowledged:
                self.acknowledge()
        if self.crp_policies is not None and self.crp_acks_early():
            self._crp_settle(ACK, early=True)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Note that the hard time limit ended the task."""
        if not soft:
            self._crp_end("time_limit", TimeLimitExceeded(timeout))
        self._crp_note_end(super().on_timeout, self._crp_settle_failure, soft, timeout)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Note what the task raised."""
        error = worker_compat.unwrapped(exc_info.exception)
        self._crp_end(_ending(error), error, str(exc_info.traceback or ""))
        settle = partial(self.reject, error.requeue) if isinstance(error, Reject) else self._crp_settle_failure
        return self._crp_note_end(super().on_failure, settle, exc_info, *args, **kwargs)

    def _announce_revoked(self, *args: Any, **kwargs: Any) -> None:
        self._crp_end("revoked")
        self._crp_note_end(super()._announce_revoked, self.acknowledge, *args, **kwargs)

    def terminate(self, pool: Any, signal: str | int | None = None) -> None:
        """End the task because it was revoked.

        One that waited for a place is ended as it begins: eventlet kills the greenlet in which this runs before Celery says so.
        """
        try:
            super().terminate(pool, signal)
        except BaseException as error:
            if pool.is_green and type(error).__name__ == "GreenletExit":
                self._announce_revoked("terminated", True, signals.signum(signal or TERM_SIGNAME), False)
            raise

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """End a task that runs, so that its message is delivered again: after a connection loss, or in a cold shutdown.

        A killed greenlet ends as if its task had succeeded (`TaskPool._make_killable_target`); eventlet switches to it at once.
        Threads and solo can end no task: Celery's error would be raised in that of solo, amid which a signal's handler runs.
        """
        self._crp_killed = pool.is_green and bool(self.time_start)
        try:
            super().cancel(pool, *args, **kwargs)
        except NotImplementedError as error:
            logger.warning("task %s goes on: %s", self.id, error, extra={"task_id": self.id})

    def acknowledge(self) -> None:
        """Settle as the policy says; without one, ack. Leave what the task has settled, and what a killed greenlet had."""
        if not self._crp_killed:
            self._crp_settle(ACK, early=not self.task.acks_late)

    def reject(self, requeue: bool = False) -> None:
        """Settle as the policy says; without one, reject."""
        self._crp_settle(REQUEUE if requeue else "reject")

    # -- ours -------------------------------------------------------------------------------------------------------------

    def _crp_note_end(self, note: Callable[..., Any], settle: Callable[[], None], *args: Any, **kwargs: Any) -> Any:
        """Have Celery note how the task ended, and `settle` the message where that fails.

        Celery asks the result backend, which may be away, and calls the task's hooks, before it settles.
        """
        try:
            return note(*args, **kwargs)
        except MemoryError:
            raise
        except Exception:
            logger.exception("the end of task %s cannot be noted", self.id, extra={"task_id": self.id})
            if isinstance(self.message, Message) and not self.message.acknowledged:
                settle()
            return None

    def _crp_settle_failure(self) -> None:
        """Settle a late-acked message of a task that has failed, as `Request.on_failure` does."""
        settings = {name: getattr(self.task, name) for name in LATE_SETTLEMENTS if hasattr(self.task, name)}
        action = _by_settings(settings).get(self._crp_ending, REQUEUE)
        if action == ACK:
            self.acknowledge()
        else:
            self.reject(requeue=action == REQUEUE)

    def _crp_settled_by_task(self) -> str:
        message = self.message
        if not isinstance(message, Message):
            return ""
        # Only pools of processes have children.
        return settled_by_task(message) if children else message.settled_by_task

    def crp_acks_early(self) -> bool:
        """Return whether its message is acked before the work begins."""
        if self.crp_policies is None:
            return not self.task.acks_late
        return self._crp_table() is None

    def _crp_end(self, ending: str, error: BaseException | None = None, traceback: str = "") -> None:
        """Note how the work ended; where its message was acked before, the events tell of a failure and of a retry."""
        self._crp_ending = ending
        message = self.message
        if not isinstance(message, Message):
            return
        failure = None if error is None else _failure(error, traceback, message)
        reason = ACK_REASONS.get(ending, ending)
        settled = self._crp_settled_by_task()
        if (self._crp_acked_early or settled == ACK) and ending in LATE_ENDINGS:
            if not self._crp_failure_told:
                # Celery tells twice of a time limit: when it is over, and when its process has ended.
                self._crp_failure_told = True
                message.tell_failed(reason or ending, failure)
        elif not settled:
            message.note_outcome(reason, failure)

    def _crp_table(self) -> Mapping[str, str] | None:
        """Return what is done by ending; None: everything was acked first."""
        assert self.crp_policies is not None  # noqa: S101 - for mypy: the callers have looked
        policy = self.crp_policies.of(self.task, getattr(self.message, "queue", None))
        if policy is not None:
            return POLICIES[policy] or None
        settings = self.crp_settings or {}
        return _by_settings(settings) if settings.get("acks_late") else None

    def _crp_settle(self, action: str, *, early: bool = False) -> None:
        """Settle as the policy says, else by `action`, where the task has not settled by itself."""
        if self._crp_settled_by_task():
            return
        if self.crp_policies is not None:
            table = self._crp_table()
            action = ACK if table is None else table.get(self._crp_ending, action)
        message = self.message
        if action == ACK:
            leaves_first = early and isinstance(message, Message)
            if leaves_first and self._crp_ending == "success":
                self._crp_acked_early = True
                message.mark_acked_early(begins_here=self.crp_begins_here)
            try:
                super().acknowledge()
            except NotAckedError:
                refuse_unacked(self)
            # Celery 5.6 and 5.7 pass over that error.
            if leaves_first and not message.acknowledged:
                refuse_unacked(self)
        else:
            if self._crp_ending != "requeue" and isinstance(message, Message):
                # By a policy, not as the task wishes.
                message.mark_failed()
            super().reject(requeue=action == REQUEUE)


def _by_settings(settings: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what Celery's settings of a late-acked task do, by ending."""
    on_failure = settings.get("acks_on_failure", settings.get("acks_on_failure_or_timeout", True))
    on_timeout = settings.get("acks_on_timeout", settings.get("acks_on_failure_or_timeout", True))
    failure = ACK if on_failure else "reject"
    return {
        **POLICIES["ack_after"],
        "failure": failure,
        "time_limit": ACK if on_timeout else REQUEUE,
        "worker_lost": REQUEUE if settings.get("reject_on_worker_lost") else failure,
    }


def _ending(error: BaseException) -> str:
    if isinstance(error, Reject):
        return "requeue" if error.requeue else "rejected"
    for kind, ending in (
        (Ignore, "ignored"),
        (Retry, "retry"),
        (TimeLimitExceeded, "time_limit"),
        (WorkerLostError, "worker_lost"),
    ):
        if isinstance(error, kind):
            return ending
    # What leaves a pool process by SystemExit has ended the process (`Request.on_failure`).
    return "worker_lost" if isinstance(error, SystemExit | KeyboardInterrupt) else "failure"


def _failure(error: BaseException, traceback: str, message: Message) -> Failure | None:
    """Return what is kept of an exception; None of one that says nothing."""
    if isinstance(error, UNRECORDED_ERRORS):
        return None
    options = None if message.delivered_by is None else message.delivered_by.session.options
    release = "" if options is None else options.release or ""
    if isinstance(error, Reject):
        return None if error.reason is None else failure_of("Reject", text_of(error.reason), release=release)
    # An exception that cannot be pickled comes in a wrapper that has its name and its text.
    name = getattr(error, "exc_cls_name", type(error).__name__)
    args = getattr(error, "exc_args", None)
    text = " ".join(map(text_of, args)) if args is not None else text_of(error)
    keep = 0 if options is None else options.error_traceback_bytes
    return failure_of(name, text, traceback, traceback_bytes=keep, release=release)


def install_request_class(app: Any, policies: AckPolicies, *, waits_in_pool: bool = False, begins_here: bool = False) -> None:
    """Let the requests of all of the app's tasks settle through `BrokerRequest`; idempotent.

    Has to be called before the consumer builds its strategies, which is when Celery looks at the tasks' settings.
    `waits_in_pool` and `begins_here` are of the worker's pool, see `BrokerRequest`.

    Raises:
        OptionError: a task's `ack_policy` does not exist.
        UnsupportedVersion: an ack policy needs to know revoked tasks, and this version of Celery does not tell.
    """
    of_pool: dict[str, Any] = {"crp_waits_in_pool": waits_in_pool, "crp_begins_here": begins_here}
    for task in app.tasks.values():
        base = symbol_by_name(task.Request)
        if issubclass(base, BrokerRequest):
            if (base.crp_waits_in_pool, base.crp_begins_here) != (waits_in_pool, begins_here):
                # Another worker of the app, in the same process; the first one keeps the class that it has.
                task.Request = type(base.__name__, (base,), dict(of_pool))
            continue
        names = dict(of_pool)
        governed = policies.governs(task)
        if governed and collects(task):
            governed = False
            if getattr(task, "ack_policy", None):
                logger.warning(
                    "task %r: celery-batches knows no ack_policy; its acks_late decides",
                    task.name,
                    extra={"task_name": task.name},
                )
        (worker_compat.ANNOUNCE_REVOKED_FOR_POLICIES if governed else worker_compat.ANNOUNCE_REVOKED).of(base)
        if governed:
            policies.of(task, None)
            names["crp_policies"] = policies
            names["crp_settings"] = {name: getattr(task, name) for name in LATE_SETTLEMENTS if hasattr(task, name)}
            for name, value in LATE_SETTLEMENTS.items():
                if hasattr(task, name):
                    setattr(task, name, value)
        task.Request = type(base.__name__, (BrokerRequest, base), names)


def install_immediate_acks(consumer: Any) -> None:
    """Let `consumer` settle our messages in the thread that says so, instead of with the next turn of its loop; idempotent.

    Celery hands acks and rejects to its event loop (`Consumer.call_soon`; `call_soon_ack` since 5.7), because py-amqp's channels
    belong to one thread. Ours take settlements from any thread. What ended between a task's end and the loop's next turn was run
    again when the worker was killed there: 0.6 tasks a kill with threads, which compete with the loop for the interpreter's lock.
    """
    for name in worker_compat.schedulers(consumer):
        wrap(consumer, name, _settle_now)


def _settle_now(later: Callable[..., Any], function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a method of our messages, which only settles; leave everything else to the loop."""
    if isinstance(getattr(function, "__self__", None), Message):
        return function(*arguments, **named)
    return later(function, *arguments, **named)
