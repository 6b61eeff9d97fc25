"""The routes of the page, and what becomes of errors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from celery_redis_plus.cli.web.access import Guard
from celery_redis_plus.cli.web.actions import Actions, by_user
from celery_redis_plus.cli.web.listings import Listings
from celery_redis_plus.cli.web.message_actions import MessageActions
from celery_redis_plus.cli.web.pages import Pages
from celery_redis_plus.cli.web.presentation import Presentation
from celery_redis_plus.errors import CeleryRedisPlusError, InvalidArgument, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.cli.web.access import Access
    from celery_redis_plus.cli.web.bulk_actions import BulkActions
    from celery_redis_plus.cli.web.samples import Samples

STATIC: Final = Path(__file__).parent / "static"


def make_app(
    admin: Callable[[], BrokerAdmin], samples: Samples, access: Access, bulk: BulkActions, broker: str = ""
) -> Starlette:  # fmt: skip
    """Return the ASGI application.

    Args:
        admin: gives the connection to the broker, to several threads; see `connection.SharedConnection`.
        samples: of the queues.
        access: who may use it.
        bulk: the actions on many messages that it starts; the caller closes it.
        broker: what it is called on the pages, without its password.
    """
    presentation = Presentation(access, broker)
    pages = Pages(admin, samples, presentation, bulk)
    listings = Listings(admin, presentation, bulk)
    actions = Actions(admin, access, presentation, bulk)
    single = MessageActions(admin, presentation)

    def answer_error(request: Request, error: Exception) -> Response:
        return presentation.refusal(request, *_told(error))

    return Starlette(
        routes=[
            Route("/", pages.queues),
            Route("/queue", pages.queue),
            Route("/message", pages.message),
            Route("/scheduled", listings.scheduled),
            Route("/running", listings.running),
            Route("/dead-letters", listings.dead_letters),
            Route("/dead-letters/groups", listings.dead_letter_groups),
            Route("/confirm", listings.confirm),
            Route("/healthz", partial(_health, samples)),
            Route("/consumers", pages.consumers),
            Route("/search", pages.search),
            Route("/login", actions.login, methods=["GET", "POST"]),
            Route("/logout", actions.logout, methods=["POST"]),
            Route("/queue/pause", by_user(actions.pause), methods=["POST"]),
            Route("/queue/resume", by_user(actions.resume), methods=["POST"]),
            Route("/dead-letters/replay", by_user(actions.replay), methods=["POST"]),
            Route("/dead-letters/replay-many", by_user(actions.replay_many), methods=["POST"]),
            Route("/dead-letters/delete-many", by_user(actions.delete_many), methods=["POST"]),
            Route("/queue/move", by_user(actions.move_many), methods=["POST"]),
            Route("/queue/cancel", by_user(actions.cancel_many), methods=["POST"]),
            Route("/queue/purge", by_user(actions.purge), methods=["POST"]),
            Route("/messages/run-now", by_user(single.run_now), methods=["POST"]),
            Route("/messages/move", by_user(single.move), methods=["POST"]),
            Route("/messages/cancel", by_user(single.cancel), methods=["POST"]),
            Route("/messages/prioritize", by_user(single.prioritize), methods=["POST"]),
            Route("/messages/kick", by_user(single.kick), methods=["POST"]),
            Route("/stop", by_user(actions.stop), methods=["POST"]),
            Route("/dead-letters/delete", by_user(actions.delete), methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, access=access, refuse=presentation.refusal)],
        exception_handlers=dict.fromkeys(
            (HTTPException, UnicodeEncodeError, CeleryRedisPlusError, RedisError, OSError), answer_error
        ),
    )


def _health(samples: Samples, _: Request) -> Response:
    """Tell that this process serves; a broker that is away is no reason to start it anew."""
    broker = {None: "unknown", False: "reachable", True: "away"}[samples.is_away]
    return JSONResponse({"status": "ok", "broker": broker})


def _told(error: Exception) -> tuple[int, str]:
    """Return the status for an error and what the page says."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, QueueNotFound):
        return 404, str(error)
    if isinstance(error, InvalidArgument):
        return 400, str(error)
    if isinstance(error, UnicodeEncodeError):
        # Odd bytes in a message's id.
        return 400, "The address cannot be read."
    return 503, f"The broker cannot be asked: {error}"
