#!lua flags=allow-oom
-- Adds bindings to an exchange, or removes them, and moves its version on where something changed.
-- KEYS  1 binding (hash: binding -> '', and the field `version`)
-- ARGV  1 'bind', 'unbind' or 'clear' (all), then the bindings
-- Returns the version.
-- @include now
-- @include text

-- Milliseconds for which an exchange without bindings keeps its version: it tells "removed" from "lost" (`broker/knowledge.py`).
local EMPTY_MS = 3600000
local changed = 0
if ARGV[1] == 'clear' then
  changed = math.max(0, redis.call('HLEN', KEYS[1]) - 1)
  local version = redis.call('HGET', KEYS[1], 'version')
  redis.call('DEL', KEYS[1])
  if version then redis.call('HSET', KEYS[1], 'version', version) end
end
for i = 2, #ARGV do
  if ARGV[1] == 'bind' then
    changed = changed + redis.call('HSETNX', KEYS[1], ARGV[i], '')
  else
    changed = changed + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
if changed == 0 then return tonumber(redis.call('HGET', KEYS[1], 'version') or 0) end
if redis.call('HEXISTS', KEYS[1], 'version') == 0 then
  -- A new hash must not repeat a version that a publisher remembers from the one before.
  redis.call('HSET', KEYS[1], 'version', text(now_ms()))
end
local version = redis.call('HINCRBY', KEYS[1], 'version', 1)
if redis.call('HLEN', KEYS[1]) == 1 then
  redis.call('PEXPIRE', KEYS[1], EMPTY_MS)
else
  redis.call('PERSIST', KEYS[1])
end
return version
