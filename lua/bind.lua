#!lua flags=allow-oom
-- Adds bindings to an exchange, or removes them, and moves its version on where something changed.
-- KEYS  1 binding (hash: binding -> '', and the field `version`)
-- ARGV  1 'bind' or 'unbind', then the bindings
-- Returns the version.
-- @include now
-- @include text
local changed = 0
for i = 2, #ARGV do
  if ARGV[1] == 'bind' then
    changed = changed + redis.call('HSETNX', KEYS[1], ARGV[i], '')
  else
    changed = changed + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
if ARGV[1] == 'unbind' and changed > 0 and redis.call('HLEN', KEYS[1]) == 1 then
  -- Only the version is left: an exchange without bindings leaves no key. Versions go on from the clock.
  redis.call('DEL', KEYS[1])
  return 0
end
if changed == 0 then return tonumber(redis.call('HGET', KEYS[1], 'version') or 0) end
if redis.call('HEXISTS', KEYS[1], 'version') == 0 then
  -- A new hash must not repeat a version that a publisher remembers from the one before.
  redis.call('HSET', KEYS[1], 'version', text(now_ms()))
end
return redis.call('HINCRBY', KEYS[1], 'version', 1)
