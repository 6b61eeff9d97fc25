"""What a configured app publishes: a naive `eta` means what its settings say, and the results of duplicates have the right ids.

Where no signal handler ran, the transport takes a naive time for UTC.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import Any

from celery import Task, chord, current_app, current_task, group, signals

from celery_redis_plus.broker.arguments.deduplication import ID as DEDUPLICATION_ID
from celery_redis_plus.broker.arguments.eta import COUNTDOWN
from celery_redis_plus.broker.arguments.names import GROUP
from celery_redis_plus.broker.publishing.tracking_request import ACK_TIMEOUT_S, TRACK, is_tracked, tracking_request
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.integration.app_connections import Connections, GroupOf, connections_of, publishes_to_us
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.transport.publishing import duplicate_tasks

#: Options of a task that hold the signatures of tasks that follow it; and arguments of canvas that hold their members.
_CONTINUATIONS = ("chain", "chord", "link", "link_error")
_MEMBERS = ("tasks", "header", "body")
#: Options with which Celery sends a task of a chain, group or chord; and all that tell of other tasks.
_OF_CANVAS = ("chain", "chord", "group_id")
_AROUND = (*_CONTINUATIONS, "group_id")


class EtaOffset:
    """Receives `before_task_publish`, once a process, for the apps that are configured with us."""

    def __init__(self) -> None:
        #: Weak, and in the order of configuration.
        self._apps: list[weakref.ReferenceType[Any]] = []

    def add(self, app: Any) -> None:
        """Serve `app` from now on."""
        self._apps = [known for known in self._apps if known() not in {None, app}] + [weakref.ref(app)]
        signals.before_task_publish.connect(self, weak=False, dispatch_uid="celery_redis_plus.eta")

    def __call__(
        self,
        sender: str = "",
        headers: dict[str, Any] | None = None,
        declare: Sequence[Any] | None = None,
        **named: Any,  # noqa: ARG002 - signals gain arguments
    ) -> None:
        """Write the offset from UTC into a naive `eta` of an app whose times are local.

        The header stays the only place of the time, so that what other receivers make of it counts. An eta that is no time is
        left to the transport, which refuses it with InvalidEta: a signal's errors are only logged.
        """
        if not headers or not headers.get("eta"):
            return
        app = self._app_of(sender, declare or ())
        if app is not None and not app.conf.enable_utc and publishes_to_us(app):
            with suppress(ValueError):
                headers["eta"] = _with_offset(headers["eta"], app.timezone)

    def _app_of(self, task: str, declare: Sequence[Any]) -> Any:
        """Return the app that publishes `task`: the signal does not name it, but the queue that is declared is the app's own.

        Where none is declared (an exchange was given), the current app, or one that has the task, is the best guess.
        """
        apps = [app for known in self._apps if (app := known()) is not None]
        for queue in declare:
            for app in apps:
                if "amqp" in app.__dict__ and app.amqp.queues.get(queue.name) is queue:
                    return app
        current = current_app._get_current_object()  # noqa: SLF001 - the documented way to look behind a proxy
        if current in apps:
            return current
        return next((app for app in apps if task in app.tasks), apps[0] if len(apps) == 1 else None)


def _with_offset(eta: Any, zone: Any) -> Any:
    """Return an ISO time with its offset from UTC: a worker takes one without for UTC, whatever `enable_utc` says."""
    if not isinstance(eta, str):
        return eta
    moment = datetime.fromisoformat(eta)
    return eta if moment.tzinfo is not None else moment.replace(tzinfo=zone).isoformat()


#: One receiver a process: the signal is the process's, too.
_eta_offset = EtaOffset()


def install_eta_offset(app: Any) -> None:
    """Have the delayed tasks that `app` publishes say which time they mean."""
    _eta_offset.add(app)


def install_send_options(app: Any) -> None:
    """Have the result of a deduplicated task carry the id of the task that stands for it, and track tasks; idempotent.

    The result of a task with the option `track` has the handle of its delivery, `delivery`.

    `Task.apply_async` and all of Celery's canvas publish by `app.send_task`.
    """
    wrap(app, "send_task", _send_task, connections_of(app))
    # A task that runs eagerly does not pass there.
    wrap(Task, "apply", _refuse_tracking)
    # A group and a chord pass there with one task after the other: a refusal of the last one is too late.
    for canvas in (group, chord):
        wrap(canvas, "apply_async", _refuse_tracked_members)


def _refuse_tracked_members(
    apply_async: Callable[..., Any], canvas: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
) -> Any:  # fmt: skip
    """Send a group or a chord of any app; that of a configured one not where a member is to be tracked."""
    if connections_of(canvas.app) is not None:
        # As in `chord(header)(body)`.
        body = kwargs.get("body") if isinstance(canvas, chord) and kwargs else None
        _check_members(canvas.task, {"task": canvas.task, "options": options}, canvas, body)
    return apply_async(canvas, args, kwargs, *more, **options)


def _refuse_tracking(apply: Callable[..., Any], task: Any, *arguments: Any, **options: Any) -> Any:
    """Run a task of any app eagerly, but not with the option `track`."""
    if is_tracked(options.get("track", False)):
        raise InvalidArgument(f"track is True for {task.name!r}, which runs eagerly; allowed for sent tasks")
    result = apply(task, *arguments, **options)
    if getattr(task, "unique", None) is not None:
        result.is_duplicate = result.is_replacement = False
    return result


def _tracking_in(signatures: Any) -> str:
    """Return the first option about tracking that a signature has, or one of a list or within another one; "" without any."""
    if isinstance(signatures, Mapping):
        options, inner = signatures.get("options"), signatures.get("kwargs")
        if "task" not in signatures or not isinstance(options, Mapping):
            return ""
        for name in ("track", "ack_timeout"):
            if options.get(name) is not None and options[name] is not False:
                return f"{name} is {options[name]!r:.100}"
        nested = [options.get(name) for name in _CONTINUATIONS]
        if signatures.get("subtask_type") and isinstance(inner, Mapping):
            nested += [inner.get(name) for name in _MEMBERS]
        return _tracking_in(nested)
    # Celery's lazy list of a generator's members (`celery.utils.functional.regen`, a subclass) sends them while that runs: a
    # look here would run it to its end. `_send_task` refuses each when it comes.
    if type(signatures) in {list, tuple}:
        return next(filter(None, map(_tracking_in, signatures)), "")
    return ""


def _check_members(name: str, *signatures: Any) -> None:
    """Raise InvalidArgument where a task of a chain, group or chord is to be tracked: its caller would get no handle."""
    tracking = _tracking_in(signatures)
    if tracking:
        raise InvalidArgument(
            f"{tracking} for a task that is sent with {name!r}, in a chain, group or chord, or as a callback: no caller gets "
            "its handle; allowed for a single task"
        )


def _name_group(group_of: GroupOf, arguments: Sequence[Any], options: dict[str, Any]) -> None:
    """Add the header that names a task's message group, unless its caller has. The arguments are those of `Celery.send_task`."""
    headers = options.get("headers") or {}
    if headers.get(GROUP) is not None:
        return
    name, args, kwargs = (
        arguments[at] if len(arguments) > at else options.get(key) for at, key in enumerate(("name", "args", "kwargs"))
    )
    found = group_of(str(name), args or (), kwargs or {})
    if found is not None:
        options["headers"] = {**headers, GROUP: found}


def _send_task(
    send: Callable[..., Any], connections: Connections | None, *arguments: Any, track: bool = False,
    ack_timeout: float | None = None, **options: Any,
) -> Any:  # fmt: skip
    tracked = is_tracked(track)
    around = {name: options[name] for name in _AROUND if options.get(name)}
    if around:
        name = arguments[0] if arguments else options.get("name", "")
        is_member = tracked and any(kind in around for kind in _OF_CANVAS)
        _check_members(name, {"task": name, "options": around | ({"track": True} if is_member else {})})
    wanted = None
    if tracked:
        wanted = options[TRACK] = tracking_request(ACK_TIMEOUT_S if ack_timeout is None else ack_timeout)
    elif ack_timeout is not None:
        raise InvalidArgument(f"ack_timeout is {ack_timeout!r} without track=True; allowed with it, or none")
    unique = getattr(options.get("task_type"), "unique", None)
    replaces = False
    # The last task of a chain has an empty one.
    if unique is not None and all(options.get(kind) is None for kind in _OF_CANVAS) and not _is_awaited(options.get("task_id")):
        replaces = _make_unique(options, *arguments)
    _name_holders(connections, arguments, options)
    countdown = options.get("countdown", arguments[3] if len(arguments) > 3 else None)
    # Celery refuses what is no number.
    if countdown and isinstance(countdown, int | float) and 0 < countdown < inf:
        # Celery adds it to the publisher's clock, which may be another than the server's.
        options[COUNTDOWN] = countdown
    duplicates: dict[str, str] = {}
    token = duplicate_tasks.set(duplicates)
    replaced = False
    try:
        if replaces:
            from celery_redis_plus.integration.unique_tasks import send_replacing

            result, task_id, replaced = send_replacing(send, arguments, options, duplicates)
        else:
            result = send(*arguments, **options)
            task_id = duplicates.get(getattr(result, "id", ""))
    finally:
        duplicate_tasks.reset(token)
    if task_id is not None:
        result = result.app.AsyncResult(task_id, parent=result.parent)
    if wanted is not None:
        from celery_redis_plus.transport.api import delivery

        result.delivery = delivery(wanted.id, connection=result.app)
    if unique is not None:
        result.is_duplicate, result.is_replacement = task_id is not None, replaced
    return result


def _is_awaited(task_id: str | None) -> bool:
    """Return whether others wait for the result with this id already: the body of a chord, or what replaces the running task."""
    running = current_task._get_current_object() if task_id else None  # noqa: SLF001 - Celery's name for what the proxy stands for
    if running is None or running.request.id is None:
        return False
    body = running.request.chord or {}
    return (
        task_id == running.request.id
        or task_id == (body.get("options") or {}).get("task_id")
        or running.name == "celery.chord_unlock"
    )


def _name_holders(connections: Connections | None, arguments: Sequence[Any], options: dict[str, Any]) -> None:
    """Add the headers that name what may hold a task back: its limiter, and its message group."""
    if getattr(options.get("task_type"), "crp_limiter", None) is not None:
        _name_limiter(options, *arguments)
    if connections is not None and connections.group_of is not None:
        _name_group(connections.group_of, arguments, options)


def _name_limiter(options: dict[str, Any], _: str, args: Any = None, kwargs: Any = None, *__: Any) -> None:
    """Give a task the header that names its limiter, unless its caller has."""
    headers = dict(options.get("headers") or {})
    if headers.get("x-limiter") is None:
        from celery_redis_plus.integration.task_limiters import limiter_header

        options["headers"] = headers | limiter_header(options["task_type"], args, kwargs)


def _make_unique(options: dict[str, Any], name: str, args: Any = None, kwargs: Any = None, *_: Any, **__: Any) -> bool:  # noqa: ARG001
    """Give a unique task the headers by which the broker knows another one with its arguments; return whether it replaces that.

    A member of a chord, group or chain is always sent, and what replaces a task: others wait for its own result.
    """
    headers = dict(options.get("headers") or {})
    if DEDUPLICATION_ID in headers:
        # A retry, or its caller knows better.
        return False
    from celery_redis_plus.integration.unique_tasks import check_call, unique_headers

    task = options["task_type"]
    replaces = check_call(task, options)
    options["headers"] = headers | unique_headers(task, args, kwargs)
    return replaces
