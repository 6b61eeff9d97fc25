#!lua flags=allow-oom
-- Adds bindings to an exchange, or removes them, and moves its version on where something changed. A version that is no number, which
-- somebody else wrote, is written anew.
-- KEYS  1 binding (hash)
-- ARGV  1 'bind', 'unbind', 'clear' (all) or 'touch' (the version alone), then the bindings
-- Returns the version.
-- Bound: the bindings that are given; `clear` reads all of the exchange at once, 5,000 in 2 ms.
-- @include now
-- @include text

-- Milliseconds for which an exchange without bindings keeps its version: it tells "removed" from "lost" (`broker/exchanges/declared_topology.py`).
local EMPTY_MS = 3600000
local changed = ARGV[1] == 'touch' and 1 or 0
local binds, clears = ARGV[1] == 'bind', ARGV[1] == 'clear'
if clears then changed = redis.call('HLEN', KEYS[1]) - redis.call('HEXISTS', KEYS[1], 'version') end
for i = 2, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == (binds and 0 or 1) then changed = changed + 1 end
end
local known = redis.call('HGET', KEYS[1], 'version')
if known and not (#known < 17 and string.find(known, '^%d+$')) then
  redis.call('HDEL', KEYS[1], 'version')
  changed = changed + 1
end
if changed == 0 then return tonumber(known or 0) end
-- The version first: one that moved for nothing makes publishers look once more, one that stood still would leave them with the old.
if redis.call('HEXISTS', KEYS[1], 'version') == 0 then
  -- A new hash must not repeat a version that a publisher remembers from the one before.
  redis.call('HSET', KEYS[1], 'version', text(now_ms()))
end
local version = redis.call('HINCRBY', KEYS[1], 'version', 1)
if clears then
  local fields = redis.call('HKEYS', KEYS[1])
  for i, field in ipairs(fields) do
    if field == 'version' then
      table.remove(fields, i)
      break
    end
  end
  -- Lua's `unpack` fails near 8,000 values.
  for first = 1, #fields, 1000 do
    redis.call('HDEL', KEYS[1], unpack(fields, first, math.min(first + 999, #fields)))
  end
end
for i = 2, #ARGV do
  if binds then redis.call('HSETNX', KEYS[1], ARGV[i], '') else redis.call('HDEL', KEYS[1], ARGV[i]) end
end
if redis.call('HLEN', KEYS[1]) == 1 then
  redis.call('PEXPIRE', KEYS[1], EMPTY_MS)
else
  redis.call('PERSIST', KEYS[1])
end
return version
