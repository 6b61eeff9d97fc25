import pytest
import shop

pytest_plugins = ["celery_redis_plus.testing.fixtures"]


@pytest.fixture(autouse=True)
def _clean():
    shop.sent.clear()
    shop.refusals.clear()
