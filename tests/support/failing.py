"""Scripts that fail in their middle: a wrapper that raises an error at the N-th command that writes, and at each one after it."""

from __future__ import annotations

from functools import cache

from celery_redis_plus import scripts

#: Commands after which nothing is different.
READS = """
EXISTS GET HEXISTS HGET HGETALL HKEYS HLEN HMGET HSTRLEN HVALS INFO PTTL TIME TYPE XINFO XLEN XRANGE ZCARD ZCOUNT ZRANDMEMBER
ZRANGE ZRANGEBYSCORE ZRANK ZREVRANGE ZREVRANGEBYSCORE ZSCORE
"""
MESSAGE = "ERR the test lets this command fail"
#: The command that failed, whether its script has told so or not.
FAILED_KEY = "test:failed"
WRAPPER = """\
local _reads = {{{reads}}}
local _redis, _writes = redis, 0
local redis = setmetatable({{}}, {{ __index = _redis }})
local function _fails(command)
  if _reads[string.upper(command)] then return false end
  _writes = _writes + 1
  if _writes < {fails_at} then return false end
  _redis.call('SET', '{failed}', command)
  return true
end
redis.call = function(command, ...)
  if _fails(command) then return error({{ err = '{message}' }}) end
  return _redis.call(command, ...)
end
redis.pcall = function(command, ...)
  if _fails(command) then return {{ err = '{message}' }} end
  return _redis.pcall(command, ...)
end
"""


def failing_at(name: str, number: int) -> scripts.Script:
    """Return the script `name` in which its `number`-th writing command (from 1) fails, and all that follow.

    A command that only reads may fail as well: what it leaves is what the next writing command leaves.
    """
    return _failing(scripts.script(name), number)


@cache
def _failing(script: scripts.Script, number: int) -> scripts.Script:
    first, _, rest = script.source.partition("\n")
    reads = ", ".join(f"{command} = true" for command in READS.split())
    wrapper = WRAPPER.format(reads=reads, fails_at=number, message=MESSAGE, failed=FAILED_KEY)
    return scripts.Script.of(script.name, f"{first}\n{wrapper}{rest}")
