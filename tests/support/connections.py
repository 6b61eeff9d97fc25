"""Scripts for tests of wires, and what collects their answers."""

from __future__ import annotations

from celery_redis_plus.scripts import Script

ADD = Script("add", "#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])")
FAIL = Script("fail", "#!lua\nreturn redis.error_reply('ERR no')")


class Answers:
    """Collects what posted scripts answer."""

    def __init__(self):
        self.replies, self.errors = [], []

    def __call__(self, reply, error):
        (self.errors if error else self.replies).append(error or reply)
