#!lua flags=allow-oom
-- Pauses a queue for all its consumers, until it is resumed or its time is over, or resumes it. Publishing goes on.
-- KEYS  1 queue (zset, read)  2 delayed (zset, read)  3 messages_index (zset, read)  4 message (prefix of a hash, read)
--       5 bell (zset)  6 meta (hash)  7 timer (zset, read)  8 expiry (zset, read)  9 dying (zset, read)  10 dead (zset, read)
--       11 trash (zset, read)  12 consumers (zset)  13 consumer (prefix of a hash)  14 interested (zset)
-- ARGV  1 reason ('' = resume)  2 for how long (ms, 0 = for good)
-- Returns 1; 0 where the queue has no record, or was not paused and shall go on.
-- @include now
-- @include consumers
local crew = crew_of(0)
if ARGV[1] == '' then
  if redis.call('HDEL', crew.meta, 'paused', 'paused_at', 'paused_until', 'quiet') == 0 then return 0 end
  wake(crew)
  return 1
end
if redis.call('HEXISTS', crew.meta, 'id') == 0 then return 0 end
local now = now_ms()
local until_ms = ARGV[2] == '0' and 0 or now + ARGV[2]
redis.call('HSET', crew.meta, 'paused', ARGV[1], 'paused_at', text(now), 'paused_until', text(until_ms), 'quiet', 1)
direct(crew)
return 1
