"""What a process knows of a broker outlives its connections; a test begins as a process that knows nothing."""

from celery_redis_plus.duties import services as services_module


def end_services() -> None:
    """Stop the duties and forget what they held: the next test's server is empty. (A process never forgets a broker.)"""
    for service in services_module.services():
        service.stop()
        service._waker.close()  # noqa: SLF001
    services_module._services.clear()  # noqa: SLF001
