"""`configure_app`: everything that an app can have of us, by one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from celery import Celery

from celery_redis_plus.errors import OptionError
from celery_redis_plus.integration import compat
from celery_redis_plus.integration.app_connections import Connections, GroupOf, connections_of
from celery_redis_plus.integration.bootstep import install_steps
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.integration.publishing import install_eta_offset, install_send_options

App = TypeVar("App", bound=Celery)

#: How Celery finds us again when an app is unpickled in another process (pools that spawn their processes).
FIXUP = "celery_redis_plus.integration.configure:configure_app"

#: Options of a task that say what its limiter takes.
_LIMIT_OPTIONS = ("limit_key", "limit_cost")
#: Options of a task that say what follows an exception.
_RETRY_OPTIONS = ("retry_on", "dead_on", "ignore_on")
#: Those by which the broker keeps one task of some.
_UNIQUE_OPTIONS = ("unique", "unique_conflict", "debounce", "max_wait")


def configure_app(
    app: App,
    *,
    accept: Mapping[str, Any] | None = None,
    event_log: bool | None = None,
    ack_policy: str | None = None,
    queue_ack_policies: Mapping[str, str] | None = None,
    revoke_removes: bool = False,
    group_of: GroupOf | None = None,
    limiters: Mapping[str, str] | None = None,
) -> App:
    """Let `app` use Redis or Valkey through this package, and return it.

    - Broker URLs `redis://`, `rediss://`, `valkey://`, `valkeys://`, and our transport by its import path, lead here, in
      every setting that takes a broker; not those of result backends.
    - `celery worker --consumer-priority N` sets the priority of the worker's consumers.
    - A naive `eta` means what `enable_utc` and `timezone` say.
    - Tasks may have the options of the page on retries.
    - `accept` maps queues to what they accept from this app: see typed queues on the page of flow control.
    - `event_log` is the transport option of that name; `broker_transport_options` goes first.
    - `ack_policy` and `queue_ack_policies` (by queue) are ack policies; a task's own goes first.
    - `revoke_removes=True` lets `revoke` also remove delayed messages, and ready ones in queues with `event_log_index`.
    - `group_of(task, args, kwargs)` names the message group of each task that is sent.
    - `limiters` has rules of limiters by their names.

    It may be called more than once, before or after `config_from_object`. The user's settings always hold.

    Example:
        app = configure_app(Celery("shop", broker="redis://localhost:6379/0"), accept={"orders": Order})

    Raises:
        OptionError: an argument is of another kind, an ack policy does not exist, or a limiter's rule is wrong;
            with the first connection, a value of `accept` is of another kind.
        UnsupportedVersion: this version of Celery does not fit.
    """
    _check_kinds(app, revoke_removes, group_of, accept=accept, queue_ack_policies=queue_ack_policies, limiters=limiters)
    connections = connections_of(app)
    if connections is None:
        connections = Connections(app)
        compat.CONNECT.set(app, connections)
        forget_connections(app)
    if accept is not None:
        connections.accept = dict(accept)
        forget_connections(app)
    if event_log is not None:
        connections.event_log = event_log
        forget_connections(app)
    if ack_policy is not None or queue_ack_policies is not None:
        from celery_redis_plus.integration.ack_policies import AckPolicies

        connections.ack_policies = AckPolicies(ack_policy, dict(queue_ack_policies or {}))
    if group_of is not None:
        connections.group_of = group_of
    if limiters is not None:
        from celery_redis_plus.broker.arguments.limiters import Limiter

        for name, rule in limiters.items():
            Limiter.parse(f"{name}:{rule}")
        connections.limiters = dict(limiters)
    if revoke_removes:
        from celery_redis_plus.integration.messages import install_revoke

        install_revoke(app)
    install_steps(app)
    install_eta_offset(app)
    install_send_options(app)
    _install_task_options(app)
    if FIXUP not in app.fixups:
        app.fixups = {*app.fixups, FIXUP}
    return app


def _check_kinds(app: object, revoke_removes: object, group_of: object, **mappings: object) -> None:
    """Refuse arguments of another kind, before anything is changed."""
    given = [
        ("app", app, isinstance(app, Celery), "a Celery app"),
        ("revoke_removes", revoke_removes, isinstance(revoke_removes, bool), "True or False"),
        ("group_of", group_of, group_of is None or callable(group_of), "a function of task, args and kwargs"),
        *((name, value, value is None or isinstance(value, Mapping), "a mapping") for name, value in mappings.items()),
    ]
    for name, value, fits, allowed in given:
        if not fits:
            raise OptionError(f"configure_app: {name} is {value!r:.100}; allowed is {allowed}")


def forget_connections(app: Celery) -> None:
    """Drop pools that were filled over the old transport, as Celery itself does after a fork."""
    # No public way leads there: `app.close()` would also take the app out of Celery's list.
    if compat.APP_POOL.of(app) is not None:
        compat.APP_POOL.set(app, None)
    amqp = app.__dict__.get("amqp")
    if amqp is not None and compat.PRODUCER_POOL.of(amqp) is not None:
        compat.PRODUCER_POOL.set(amqp, None)


def _install_task_options(app: Celery) -> None:
    """Have the tasks of `app` do what our options of theirs say: those that it has, and those that are made later."""
    compat.TASK_FROM_FUNCTION.of(app)
    for name in (compat.TASK_FROM_FUNCTION.name, "register_task"):
        wrap(app, name, _create_task)
    if app.finalized:
        _prepare_tasks(app)
    elif app.on_after_finalize is not None:
        # Proxies of tasks that wait for it have Celery's own function already. (An app that is being unpickled has none yet.)
        app.on_after_finalize.connect(_prepare_tasks, weak=False)


def _create_task(create: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    task = create(*arguments, **options)
    _prepare_task(task)
    return task


def _prepare_tasks(sender: Celery, **_: Any) -> None:
    for task in list(sender.tasks.values()):
        _prepare_task(task)


def _prepare_task(task: Any) -> None:
    if any(getattr(task, name, None) for name in _RETRY_OPTIONS):
        from celery_redis_plus.integration.retries import prepare

        prepare(task)
    if task.rate_limit is not None or any(getattr(task, name, None) is not None for name in _LIMIT_OPTIONS):
        from celery_redis_plus.integration.task_limiters import prepare_limiter

        prepare_limiter(task)
    if any(getattr(task, name, None) is not None for name in _UNIQUE_OPTIONS):
        from celery_redis_plus.integration.unique_tasks import prepare as prepare_unique

        prepare_unique(task)
