"""The pages that list messages of several queues, dead letters, and what a bulk action would be about."""

from __future__ import annotations

import time
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException

from celery_redis_plus.broker.arguments.selection import has_text, is_of_task
from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter, grouped
from celery_redis_plus.broker.queues.listing import LISTING_PAGE
from celery_redis_plus.cli.web.requests import page_number, parameter, required

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.cli.web.bulk_actions import BulkActions
    from celery_redis_plus.cli.web.presentation import Presentation

#: Rows of a list, and messages among which a page looks for those of a filter.
ROWS: Final = LISTING_PAGE
SEARCHED: Final = 5_000
#: Parameters by which messages are selected.
FILTERS: Final = ("task", "reason", "error", "text")
#: Seconds for which a count goes on: the answer then is "at least".
COUNTED_S: Final = 3.0
#: Actions on many messages: name -> what is asked, the path of the form that does it, and the page of its queue.
BULK: Final = {
    "replay": ("Put {} back to work?", "/dead-letters/replay-many", "/dead-letters", "queue"),
    "delete": ("Delete {} for good?", "/dead-letters/delete-many", "/dead-letters", "queue"),
    "move": ("Move {}?", "/queue/move", "/queue", "name"),
    "cancel": ("Cancel {} for good?", "/queue/cancel", "/queue", "name"),
    "purge": ("Delete {} for good?", "/queue/purge", "/queue", "name"),
}


def filter_of(request: Request) -> dict[str, str | None]:
    """Return the parameters by which messages are selected; None for those without one."""
    return {name: parameter(request, name).strip() or None for name in FILTERS}


def letters_of(chosen: Mapping[str, str | None]) -> DeadLetterFilter:
    """Return the filter of dead letters that these parameters, or fields of a form, are."""
    return DeadLetterFilter(chosen["task"], chosen["reason"], error=chosen["error"], text=chosen["text"])


class Listings:
    """What GET answers; arguments as of `Pages`."""

    def __init__(self, admin: Callable[[], BrokerAdmin], presentation: Presentation, bulk: BulkActions) -> None:
        self._admin = admin
        self._bulk = bulk
        self._show = presentation.page

    def scheduled(self, request: Request) -> Response:
        """Show a page of the delayed messages of all queues, or of some, of all tasks or of one, the next due first."""
        admin, page = self._admin(), page_number(request)
        queue, chosen = parameter(request, "queue").strip(), filter_of(request)
        delayed = [one for one in admin.overview(*([queue] if queue else [])) if one.delayed]
        total = sum(one.delayed for one in delayed)
        looked_at = SEARCHED if chosen["task"] or chosen["text"] else ROWS
        first = page * looked_at
        if len(delayed) == 1:
            found = islice(admin.list_messages(delayed[0].queue, "delayed", first=first), looked_at)
        else:
            if first > SEARCHED:
                raise HTTPException(400, f"Beyond {SEARCHED:,} messages of several queues: name one queue.")
            found = islice(admin.scheduled(*([queue] if queue else [])), first, first + looked_at)
        wanted = (one for one in found if is_of_task(one.headers, chosen["task"]) and has_text(one.headers, chosen["text"]))
        messages = list(islice(wanted, ROWS))
        more = total > first + looked_at
        return self._show(
            request, "scheduled.html", messages=messages, total=total, page=page, more=more, first=first, looked_at=looked_at,
            chosen={"queue": queue or None, "task": chosen["task"], "text": chosen["text"]},
        )  # fmt: skip

    def running(self, request: Request) -> Response:
        """Show the messages that consumers have, those first that are held longest."""
        admin, page = self._admin(), page_number(request)
        queue, task = parameter(request, "queue").strip(), parameter(request, "task").strip() or None
        held = [one for one in admin.overview(*([queue] if queue else [])) if one.unacked]
        total = sum(one.unacked for one in held)
        looked_at = islice(chain.from_iterable(admin.list_messages(one.queue, "unacked") for one in held), SEARCHED)
        found = sorted((one for one in looked_at if is_of_task(one.headers, task)), key=lambda one: one.claimed_ms or 0)
        shown = found[page * ROWS : (page + 1) * ROWS]
        holders = {name: admin.holders(name) for name in dict.fromkeys(one.queue for one in shown)}
        messages = [(one, holders[one.queue].get(one.holder or "")) for one in shown]
        return self._show(
            request, "running.html", messages=messages, total=total, page=page, more=len(found) > (page + 1) * ROWS,
            chosen={"queue": queue or None, "task": task}, searched=SEARCHED,
        )  # fmt: skip

    def dead_letters(self, request: Request) -> Response:
        """Show a page of the dead letters of a queue, the last one first; without a queue, the queues that have some."""
        admin, name, page = self._admin(), parameter(request, "queue"), page_number(request)
        if not name:
            return self._show(request, "dead_letter_queues.html", queues=[one for one in admin.overview() if one.dead])
        admin.check_queue(name)
        chosen, oldest = filter_of(request), parameter(request, "order") == "oldest"
        action = self._bulk.of("/dead-letters", name)
        # Asked before the figures: those of the end come with the next look.
        goes_on = action is not None and action.is_running
        total = admin.dead_letters.count(name)
        looked_at = SEARCHED if any(chosen.values()) else ROWS
        if any(chosen.values()):
            search = admin.search_dead_letters(name, letters_of(chosen), newest=not oldest)
            found = chain.from_iterable(letters for _, letters in search.pages(page * looked_at, looked_at))
            letters = list(islice(found, ROWS))
        else:
            letters = admin.dead_letters.page(name, page * ROWS, ROWS, newest=not oldest)
        return self._show(
            request, "dead_letters.html", name=name, letters=letters, total=total, page=page, more=total > (page + 1) * looked_at,
            chosen=chosen, order="oldest" if oldest else None, looked_at=looked_at, action=action, goes_on=goes_on,
        )  # fmt: skip

    def dead_letter_groups(self, request: Request) -> Response:
        """Show the dead letters of a queue by task, reason and error: of the last ones, so many as a page looks at."""
        admin, name = self._admin(), required(request, "queue")
        admin.check_queue(name)
        search = admin.search_dead_letters(name, DeadLetterFilter(), newest=True)
        groups = grouped(letter for _, letters in search.pages(0, SEARCHED) for letter in letters)
        return self._show(
            request, "dead_letter_groups.html", name=name, groups=groups, total=len(search.tags), looked_at=SEARCHED
        )  # fmt: skip

    def confirm(self, request: Request) -> Response:
        """Count what an action on many messages is about, and ask."""
        admin, name, action = self._admin(), required(request, "queue"), parameter(request, "action")
        if action not in BULK:
            raise HTTPException(400, f"action={action:.50}: allowed are {', '.join(BULK)}.")
        question, path, page, names = BULK[action]
        admin.check_queue(name)
        chosen, to = filter_of(request), parameter(request, "to").strip()
        if action == "move":
            if not to:
                raise HTTPException(400, "The form lacks the queue to move to.")
            admin.check_queue(to)
        overview = admin.overview_of(name)
        count, looked_at, total = 0, 0, overview.ready + overview.delayed
        pages: Iterable[tuple[int, Any]]
        if page == "/dead-letters":
            search = admin.search_dead_letters(name, letters_of(chosen))
            total = len(search.tags)
            pages = search.pages() if any(chosen.values()) else [(total, search.tags)]
        elif action == "purge":
            pages = [(total, range(total))]
        elif chosen["task"] is None:
            raise HTTPException(400, "The form lacks the task: its name, or a pattern such as shop.*")
        else:
            pages = admin.waiting_tags(name, chosen["task"])
        ends = time.monotonic() + COUNTED_S
        for number, those in pages:
            count += len(those)
            looked_at += number
            if time.monotonic() > ends:
                break
        return self._show(
            request, "confirm.html", name=name, action=action, question=question, form=path, page=page, names=names, to=to,
            chosen=chosen, count=count, whole=looked_at >= total, looked_at=looked_at, total=total,
        )  # fmt: skip
