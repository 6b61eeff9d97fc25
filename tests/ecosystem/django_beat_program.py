"""A Django project whose beat reads its schedule from the database, by django-celery-beat: it sends a task each second."""

from __future__ import annotations

import os

import django
from celery import Celery
from django.conf import settings
from django.core.management import call_command


def main() -> None:
    """Migrate, store a periodic task, and run beat."""
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_beat"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["CRP_TEST_DATABASE"]}},
        USE_TZ=True,
        CELERY_BROKER_URL=os.environ["CRP_TEST_BROKER"],
        CELERY_BEAT_MAX_LOOP_INTERVAL=1,
    )
    django.setup()
    call_command("migrate", verbosity=0)
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    each_second = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.create(name="tick", task="p.tick", interval=each_second)
    app = Celery("project")
    app.config_from_object("django.conf:settings", namespace="CELERY")
    app.Beat(scheduler_cls="django_celery_beat.schedulers:DatabaseScheduler", loglevel="INFO", quiet=True).run()


if __name__ == "__main__":
    main()
