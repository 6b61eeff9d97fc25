"""The pages: what each reads from the broker, and shows. An error of the broker is answered by `app.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from celery_redis_plus.admin.explanation.explain import Rate
from celery_redis_plus.admin.formatting import span
from celery_redis_plus.broker.arguments.selection import has_text, is_of_task
from celery_redis_plus.broker.queues.listing import LISTING_PAGE, STATES, State
from celery_redis_plus.cli.output import time_of
from celery_redis_plus.cli.web.requests import page_number, parameter, required
from celery_redis_plus.cli.web.samples import Sample, rates

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.broker.queues.overview import QueueOverview
    from celery_redis_plus.cli.web.bulk_actions import BulkActions
    from celery_redis_plus.cli.web.presentation import Presentation
    from celery_redis_plus.cli.web.samples import Samples

#: Queues on one page; each costs a round trip.
QUEUES_A_PAGE: Final = 200
#: Messages among which a page looks for those of a task.
SEARCHED: Final = 5_000
#: Samples of which the rate of deliveries is made: a minute.
RATE_SAMPLES: Final = 13
#: Rows of the other lists, and characters of a body.
ROWS: Final = LISTING_PAGE
#: Groups, and limiters, of a queue that its page shows.
HOLDERS_SHOWN: Final = 10
BODY_SHOWN: Final = 20_000
#: The lists of a queue's page; dead letters have a page of their own.
TABS: Final[tuple[State, ...]] = ("ready", "delayed", "unacked")


def _worst(one: QueueOverview) -> tuple[Any, ...]:
    """Put full queues first, then those that wait without a consumer, then the longest waits, then the most messages."""
    full = one.full is not None and one.full >= 1
    return not full, not (one.ready and not one.consumers), -(one.oldest_s or 0), -(one.ready + one.dead), one.queue


#: How queues are sorted.
ORDERS: Final[dict[str, Callable[[QueueOverview], Any]]] = {
    "worst": _worst,
    "name": lambda one: one.queue,
    "ready": lambda one: (-one.ready, one.queue),
    "delayed": lambda one: (-one.delayed, one.queue),
    "unacked": lambda one: (-one.unacked, one.queue),
    "dead": lambda one: (-one.dead, one.queue),
    "oldest": lambda one: (-(one.oldest_s or 0), one.queue),
}


class Pages:
    """What GET answers.

    Args:
        admin: gives the connection to the broker. Raises as `BrokerAdmin.of_app` does.
        samples: of the queues, for lines and rates.
        presentation: makes HTML.
        bulk: actions on many messages that go on.
    """

    def __init__(
        self, admin: Callable[[], BrokerAdmin], samples: Samples, presentation: Presentation, bulk: BulkActions
    ) -> None:  # fmt: skip
        self._admin = admin
        self._bulk = bulk
        self._samples = samples
        self._show = presentation.page
        self._url = presentation.url

    def queues(self, request: Request) -> Response:
        """Show how all queues stand, or those with a text in their name."""
        admin = self._admin()
        wanted, page = parameter(request, "name").strip(), page_number(request)
        internal = bool(parameter(request, "internal"))
        order = parameter(request, "sort") or "worst"
        if order not in ORDERS:
            raise HTTPException(400, f"sort={order:.50}: allowed are {', '.join(ORDERS)}.")
        known = self._samples.latest()
        names = [name for name in admin.queues(internal=internal) if wanted.lower() in name.lower()]
        if order != "name":
            # By the last look, some seconds ago, unless there are queues that it has not seen.
            if not known.keys() >= set(names):
                known = {one.queue: one for one in admin.overviews_of(names)}
            names = [one.queue for one in sorted((known[name] for name in names if name in known), key=ORDERS[order])]
        sums = {state: sum(getattr(known[name], state) for name in names if name in known) for state in STATES} if known else None
        shown = names[page * QUEUES_A_PAGE : (page + 1) * QUEUES_A_PAGE]
        more = len(names) > (page + 1) * QUEUES_A_PAGE
        queues = [(one, self._trend(one.queue)) for one in admin.overviews_of(shown)]
        return self._show(
            request, "queues.html", queues=queues, name=wanted, page=page, more=more, total=len(names),
            internal=internal, order=order, orders=list(ORDERS), sums=sums,
        )  # fmt: skip

    def queue(self, request: Request) -> Response:
        """Show one queue: how it stands, its consumers, and a page of its messages in one state, of all tasks or of one."""
        admin, name = self._admin(), required(request, "name")
        state, page = parameter(request, "state") or "ready", page_number(request)
        if state not in TABS:
            raise HTTPException(400, f"state={state:.50}: allowed are {', '.join(TABS)}.")
        task, text = parameter(request, "task").strip() or None, parameter(request, "text").strip() or None
        one, looked_at = admin.overview_of(name), ROWS if task is None and text is None else SEARCHED
        found = islice(admin.list_messages(name, state, first=page * looked_at), looked_at)
        wanted = (one for one in found if is_of_task(one.headers, task) and has_text(one.headers, text))
        messages = list(islice(wanted, ROWS))
        more = getattr(one, state) > (page + 1) * looked_at
        holders = admin.holders(name) if state == "unacked" and messages else {}
        return self._show(
            request, "queue.html", one=one, trend=self._trend(name), consumers=admin.consumers(name), state=state, states=TABS,
            bindings=admin.bindings(name), day=self._day(name), holders=holders,
            messages=messages, page=page, more=more, task=task, text=text, looked_at=looked_at, rows=ROWS,
            action=self._bulk.of("/queue", name), groups=admin.some_groups(name, HOLDERS_SHOWN),
            limiters=admin.limiters_of(name, HOLDERS_SHOWN),
        )  # fmt: skip

    def message(self, request: Request) -> Response:
        """Show one message with headers, properties, body and events."""
        admin, queue, id_ = self._admin(), required(request, "queue"), required(request, "id")
        admin.check_queue(queue)
        found = admin.messages.find(id_, queue)
        if found is None:
            raise HTTPException(404, f"Queue {queue!r} knows no message {id_!r}, or no longer.")
        headers, properties, body = admin.stored_small(found.queue, found.id)
        text = None if body is None else body[:BODY_SHOWN].decode("utf-8", "backslashreplace")
        events = [{**event, "ts": time_of(event["ts"] // 1000)} for event in asdict(found)["events"]]
        return self._show(
            request, "message.html", found=found, headers=headers, properties=properties, body=text, size=len(body or b""),
            shown=BODY_SHOWN, events=events, holder=admin.holders(found.queue).get(found.session) if found.session else None,
            why=admin.explain(found.queue, found.id, self._delivery_rate(found.queue)),
        )  # fmt: skip

    def _delivery_rate(self, queue: str) -> Rate | None:
        """Return how fast the messages of a queue were delivered in the last minute; None where that is not known yet."""
        samples = self._samples.of(queue)[-RATE_SAMPLES:]
        if len(samples) < 2 or samples[-1].delivered < samples[0].delivered:
            return None
        over_s = samples[-1].at - samples[0].at
        return Rate((samples[-1].delivered - samples[0].delivered) / over_s, over_s)

    def consumers(self, request: Request) -> Response:
        """Show the consumers of all queues and the subscribers of all fanout exchanges."""
        admin = self._admin()
        subscribers = [(exchange, one) for exchange, found in admin.subscribers().items() for one in found]
        return self._show(request, "consumers.html", consumers=admin.all_consumers(), subscribers=subscribers)

    def search(self, request: Request) -> Response:
        """Lead to the message that has an id or a task id, or to the queue of a name."""
        admin, wanted = self._admin(), parameter(request, "q").strip()
        if wanted in admin.queues():
            return RedirectResponse(self._url("/queue", name=wanted), 303)
        found = admin.messages.find(wanted) if wanted else None
        if found is not None:
            return RedirectResponse(self._url("/message", queue=found.queue, id=found.id), 303)
        return self._show(request, "search.html", status=404 if wanted else 200, wanted=wanted)

    def _day(self, queue: str) -> dict[str, Any] | None:
        """Return the figures of the last day for the lines; None before there are some."""
        samples = self._samples.of_day(queue)
        if len(samples) < 3:
            return None
        found = rates(samples)
        return {
            "ready": [one.ready for one in samples], "dead": [one.dead for one in samples],
            "in_rates": [rate for rate, _ in found], "out_rates": [rate for _, rate in found],
            "length": span(samples[-1].at - samples[0].at),
        }  # fmt: skip

    def _trend(self, queue: str) -> dict[str, Any]:
        """Return the figures of the last minutes for the lines, and the rates of the last moment; None where it is not known."""
        samples: list[Sample] = self._samples.of(queue)
        found = rates(samples)
        in_rate, out_rate = found[-1] if found else (None, None)
        return {
            "ready": [one.ready for one in samples],
            "dead": [one.dead for one in samples],
            "in_rates": [rate for rate, _ in found],
            "out_rates": [rate for _, rate in found],
            "in_rate": in_rate,
            "out_rate": out_rate,
            "minutes": span(samples[-1].at - samples[0].at) if len(samples) > 1 else None,
        }
