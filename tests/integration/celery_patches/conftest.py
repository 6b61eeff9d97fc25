"""Apps, as Celery's tests have them: here single patches of Celery are called, of which those tests show the whole."""

from tests.integration.celery.conftest import celery_app  # noqa: F401
from tests.support.tested_app import app  # noqa: F401
