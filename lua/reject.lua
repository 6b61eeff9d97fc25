#!lua flags=allow-oom
-- Moves rejected messages to the queue's dead letters. A transient queue keeps none: there they are removed and counted.
-- KEYS  1 messages_index (zset)  2 dead (zset)  3 message (prefix of a hash)  4 meta (hash)
-- ARGV  1 reason  2 how many dead letters the queue keeps at most, then pairs: tag, claim number (a stale one changes nothing)
-- Returns { how many were moved or removed, how many old dead letters had to go }.
-- @include now
-- @include text
local now = text(now_ms())
local transient = redis.call('HEXISTS', KEYS[4], 'ttl') == 1
local moved = 0
for i = 3, #ARGV, 2 do
  local tag = ARGV[i]
  local hash = KEYS[3] .. tag
  if redis.call('HGET', hash, 'claim') == ARGV[i + 1] and redis.call('ZREM', KEYS[1], tag) == 1 then
    moved = moved + 1
    if transient then
      redis.call('UNLINK', hash)
    else
      redis.call('HSET', hash, 'reason', ARGV[1])
      redis.call('HDEL', hash, 'by')
      redis.call('ZADD', KEYS[2], now, tag)
    end
  end
end
if moved > 0 then redis.call('HINCRBY', KEYS[4], transient and 'dropped' or 'dead_lettered', moved) end
local evicted = 0
while redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[2]) and evicted < 500 do
  local oldest = redis.call('ZPOPMIN', KEYS[2])
  redis.call('UNLINK', KEYS[3] .. oldest[1])
  evicted = evicted + 1
end
if evicted > 0 then redis.call('HINCRBY', KEYS[4], 'dead_evicted', evicted) end
return { moved, evicted }
