"""How a worker comes by our boot steps and options: when it asks, so that a process which only publishes loads none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery import current_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

#: What a worker does beyond consuming, as Celery's lists of steps name it.
STEP: Final = "celery_redis_plus.integration.worker:BrokerStep"
#: Steps that read our options of `celery worker`.
OPTION_STEPS: Final = (
    "celery_redis_plus.integration.consumer_priority:ConsumerPriority",
    "celery_redis_plus.integration.one_shard:WorkerShard",
)


class WorkerOptions(set[Any]):
    """The options of `celery worker` of one app: ours are among them when the command line reads them, which has loaded click."""

    def __iter__(self) -> Iterator[Any]:
        """Yield all options."""
        from celery_redis_plus.integration import consumer_priority, one_shard

        self.update((consumer_priority.OPTION, one_shard.OPTION))
        return super().__iter__()


def install_steps(app: Celery) -> None:
    """Have the workers of `app` include our steps, and `celery worker` take their options; idempotent."""
    app.steps["consumer"].add(STEP)
    app.steps["worker"].update(OPTION_STEPS)
    if not isinstance(app.user_options["worker"], WorkerOptions):
        app.user_options["worker"] = WorkerOptions(app.user_options["worker"])


def install_bootstep() -> None:
    """Have every consumer that is built from now on include the step where its broker is ours; idempotent.

    An app without `configure_app` has no list of steps that we know of, so the step stands among Celery's own. A worker makes
    its app the current one before it builds its consumer; where that is a configured app, nothing is changed.
    """
    if STEP in current_app.steps["consumer"]:
        return
    # Only now: `configure_app` loads this module in each process, and this one loads Celery's worker.
    from celery_redis_plus.integration import worker_compat

    steps = worker_compat.default_steps()
    if steps is not None and STEP not in steps:
        worker_compat.set_default_steps([*steps, STEP])
