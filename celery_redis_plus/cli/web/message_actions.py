"""What forms do with single messages: run now, move, cancel, another priority, and back from a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from celery_redis_plus.cli.web.requests import field, fields, parameter

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.cli.web.presentation import Presentation

#: Pages that a form leads back to, with the parameters that they keep.
BACK: Final = {
    "/queue": ("name", "state", "task", "text", "page"), "/scheduled": ("queue", "task", "text", "page"),
    "/running": ("queue", "task", "page"), "/message": ("queue", "id"),
}  # fmt: skip


class MessageActions:
    """What POST does with the messages that a form names, as `ID QUEUE`; each page has a hundred at most."""

    def __init__(self, admin: Callable[[], BrokerAdmin], presentation: Presentation) -> None:
        self._admin = admin
        self._presentation = presentation

    def run_now(self, request: Request) -> Response:
        """Make delayed messages ready."""
        admin = self._admin()
        return self._each(request, "ready", lambda queue, tag: admin.messages.reschedule(tag, 0, queue))

    def move(self, request: Request) -> Response:
        """Move waiting messages into another queue; of one alone its page there follows."""
        admin, to = self._admin(), field(request, "to")
        if not to:
            raise HTTPException(400, "The form lacks the queue to move to.")
        admin.check_queue(to)
        moved: list[str] = []

        def treat(queue: str, tag: str) -> bool:
            if queue == to:
                raise HTTPException(400, f"{to!r} is the queue that it is in: name another one.")
            there = admin.messages.move(tag, to, queue)
            moved.extend([] if there is None else [there])
            return there is not None

        return self._each(request, f"in queue {to!r}", treat, follow=lambda: ("/message", {"queue": to, "id": moved[0]}))

    def cancel(self, request: Request) -> Response:
        """Delete waiting messages for good."""
        admin = self._admin()
        queue = _messages(request)[0][0]
        return self._each(
            request, "cancelled", lambda queue, tag: bool(admin.cancel(queue, [tag])), follow=lambda: ("/queue", {"name": queue})
        )

    def prioritize(self, request: Request) -> Response:
        """Give waiting messages another priority."""
        admin, text = self._admin(), field(request, "priority")
        if not (text.isascii() and text.isdigit() and int(text[:4]) <= 255):
            raise HTTPException(400, f"The priority is {text:.20}: allowed are whole numbers from 0 to 255.")
        priority = int(text[:4])
        return self._each(
            request, f"given priority {priority}", lambda queue, tag: admin.messages.prioritize(tag, priority, queue)
        )

    def kick(self, request: Request) -> Response:
        """Take messages from the consumers that have them."""
        admin = self._admin()
        return self._each(request, "back in their queues", lambda queue, tag: bool(admin.give_back(queue, [tag])))

    def _each(
        self, request: Request, done_as: str, treat: Callable[[str, str], bool], *,
        follow: Callable[[], tuple[str, dict[str, str]]] | None = None,
    ) -> Response:  # fmt: skip
        """Treat the messages of a form; lead back to its page, or from the page of one that has gone to where `follow` says."""
        messages = _messages(request)
        done = sum(treat(queue, tag) for queue, tag in messages)
        if len(messages) == 1:
            notice = (
                f"The message is {done_as.replace('their queues', 'its queue')}."
                if done
                else "The message waits there no longer: nothing was done."
            )
        else:
            gone = "" if done == len(messages) else " The others are where they were no longer."
            notice = f"{done:,} of {len(messages):,} messages are {done_as}.{gone}"
        page = parameter(request, "back")
        if page not in BACK:
            raise HTTPException(400, f"back={page:.50}: allowed are {', '.join(BACK)}.")
        kept = {name: parameter(request, name) for name in BACK[page]}
        if page == "/message" and follow is not None and done:
            page, kept = follow()
        return RedirectResponse(self._presentation.url(page, **kept, notice=self._presentation.note(notice)), 303)


def _messages(request: Request) -> list[tuple[str, str]]:
    """Return queue and id of each message that a form names."""
    found = [one.partition(" ") for one in fields(request, "message")]
    if not found:
        raise HTTPException(400, "No message is ticked.")
    return [(queue, tag) for tag, _, queue in found]
