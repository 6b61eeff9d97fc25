"""What a process knows of a broker outlives its connections; a test begins as a process that knows nothing."""

import sys

MODULE = "celery_redis_plus.maintenance.process_services"
SHARDS = "celery_redis_plus.shards.shard_state"


def end_services() -> None:
    """Stop maintenance and forget what was known: the next test's server is empty. (A process never forgets a broker.)"""
    module = sys.modules.get(MODULE)
    if module is not None:
        module.end_services()
    shards = sys.modules.get(SHARDS)
    if shards is not None:
        shards.end()
