#!lua flags=allow-oom
-- Lists a consumer of a queue, with what is known of it; again: brings its record up to date.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 bell (zset)  6 meta (hash)
--       7 timer (zset)  8 expiry (zset)  9 dying (zset)  10 dead (zset)  11 trash (zset)  12 consumers (zset)
--       13 consumer (prefix of a hash)  14 interested (zset)
-- ARGV  1 consumer  2 for how long it counts as alive without being heard of (ms)  3 priority  4 wants the queue alone (0/1)
--       then the fields of its record: name, value
-- Returns 'plain', or 'managed' where the queue has rules for its consumers; 'exclusive' where another consumer has the queue
-- alone, 'in use' where it cannot be had alone (nothing is written then).
-- @include now
-- @include crew
local crew = crew_of(0)
local now = now_ms()
local me, priority = ARGV[1], tonumber(ARGV[3])
bury(crew, now)
local record = redis.call('HMGET', crew.meta, 'id', 'exclusive', 'sac', 'prioritised', 'active')
if record[2] and record[2] ~= me then return 'exclusive' end
local others = redis.call('ZCARD', crew.consumers)
if redis.call('ZSCORE', crew.consumers, me) then others = others - 1 end
if ARGV[4] == '1' and others > 0 then return 'in use' end
local record_key = crew.consumer .. me
local new = redis.call('HSETNX', record_key, 'since', text(now)) == 1
redis.call('HSET', record_key, 'heard', text(now), 'priority', ARGV[3], unpack(ARGV, 5))
alive(crew, me, tonumber(ARGV[2]), now)
-- A queue without a record gets none from its consumers.
if not record[1] then return 'plain' end
if ARGV[4] == '1' then redis.call('HSET', crew.meta, 'exclusive', me) end
if new and priority ~= 0 then
  redis.call('HINCRBY', crew.meta, 'prioritised', 1)
  if not record[4] then
    -- Until they say otherwise, those who were here first wait for work.
    for _, id in ipairs(redis.call('ZRANGE', crew.consumers, 0, -1)) do redis.call('ZADD', crew.interested, 0, id) end
    record[4] = '1'
  end
end
if record[4] then redis.call('ZADD', crew.interested, priority, me) end
if record[3] and not record[5] then elect(crew) end
if redis.call('HEXISTS', crew.meta, 'managed') == 1 or record[4] or ARGV[4] == '1' then wake(crew) end
return redis.call('HEXISTS', crew.meta, 'managed') == 1 and 'managed' or 'plain'
