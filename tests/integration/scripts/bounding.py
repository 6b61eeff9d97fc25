"""Scripts that fail as soon as they have looked at more than a bound: a wrapper counts commands, and what they return or remove.

It counts no time, so it finds the same on any machine. A command is one look. Five entries of its reply are another, and so are
five that a command removes without their names, or that a `LIMIT` passes over: about what they cost the server.
"""

from __future__ import annotations

from celery_redis_plus import scripts

MESSAGE = "looks at more than its bound"
WRAPPER = """\
local _redis, _looks = redis, 0
local redis = setmetatable({{}}, {{ __index = _redis }})
local _counted = {{ ZREMRANGEBYRANK = true, ZREMRANGEBYSCORE = true }}
local _sizes = {{ zset = 'ZCARD', hash = 'HLEN', set = 'SCARD', list = 'LLEN' }}
local function _look(entries)
  _looks = _looks + entries / 5
  if _looks > {most} then error({{ err = 'ERR {name} {message}' }}) end
end
local function _before(command, ...)
  local arguments = {{ ... }}
  if command == 'DEL' then
    -- It frees all of a set at once; UNLINK leaves that to another thread.
    for _, key in ipairs(arguments) do
      local size = _sizes[_redis.call('TYPE', key).ok]
      if size then _look(_redis.call(size, key)) end
    end
  end
  for i = 1, #arguments - 1 do
    if arguments[i] == 'LIMIT' and tonumber(arguments[i + 1]) and command ~= 'XTRIM' then _look(tonumber(arguments[i + 1])) end
  end
end
local function _after(command, reply)
  _look(5 + (type(reply) == 'table' and #reply or _counted[command] and reply or 0))
  return reply
end
redis.call = function(command, ...)
  _before(command, ...)
  return _after(command, _redis.call(command, ...))
end
redis.pcall = function(command, ...)
  _before(command, ...)
  return _after(command, _redis.pcall(command, ...))
end
"""


def bounded(script: scripts.Script, most: int) -> scripts.Script:
    """Return a script that raises an error with `MESSAGE` once it has looked at more than `most` entries in one call."""
    first, _, rest = script.source.partition("\n")
    return scripts.Script.of(script.name, f"{first}\n{WRAPPER.format(most=most, name=script.name, message=MESSAGE)}{rest}")
