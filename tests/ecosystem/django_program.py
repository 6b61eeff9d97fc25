"""A Django project whose tasks store their results by django-celery-results; prints the status and the result of one task."""

from __future__ import annotations

import os

import django
from celery import Celery
from celery.contrib.testing.worker import start_worker
from django.conf import settings
from django.core.management import call_command


def main() -> None:
    """Migrate, run a task through a worker of this process, and read its row."""
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["CRP_TEST_DATABASE"]}
    settings.configure(
        INSTALLED_APPS=["django_celery_results"],
        DATABASES={"default": database},
        USE_TZ=True,
        CELERY_BROKER_URL=os.environ["CRP_TEST_BROKER"],
        CELERY_RESULT_BACKEND="django-db",
    )
    django.setup()
    call_command("migrate", verbosity=0)
    app = Celery("project")
    app.config_from_object("django.conf:settings", namespace="CELERY")

    @app.task(name="p.add")
    def add(x: int, y: int) -> int:
        return x + y

    with start_worker(app, pool="solo", perform_ping_check=False):
        sent = add.apply_async((1, 2), countdown=0.2)
        sent.get(timeout=30)
    from django_celery_results.models import TaskResult

    row = TaskResult.objects.get(task_id=sent.id)
    print(row.status, row.result)  # noqa: T201


if __name__ == "__main__":
    main()
