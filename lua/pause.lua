#!lua flags=allow-oom
-- Pauses a queue for all its consumers, until it is resumed or its time is over, or resumes it. Publishing goes on.
-- KEYS  1 queue (zset, read)  2 delayed (zset, read)  3 messages_index (zset, read)  4 message (prefix of a hash, read)
--       5 wakeup (zset)  6 meta (hash)  7 schedule_wakeup (zset, read)  8 expiry (zset, read)  9 dlx_outbox (zset, read)
--       10 dead (zset, read)  11 trash (zset, read)  12 consumers (zset)  13 consumer (prefix of a hash)  14 with_credit (zset)
--       15 heartbeats (zset, read)  16 leader (hash, read)
-- ARGV  1 reason ('' = resume)  2 for how long (ms, 0 = for good)  3 who pauses it
-- Returns 1; 0 where the queue has no record, or was not paused and shall go on.
-- Bound: a fixed number of commands.
-- @include now
-- @include consumers
local keys = consumer_keys(0)
if ARGV[1] == '' then
  if redis.call('HDEL', keys.meta, 'paused', 'paused_at', 'paused_until', 'paused_by', 'quiet') == 0 then return 0 end
  notify_next(keys)
  return 1
end
if redis.call('HEXISTS', keys.meta, 'id') == 0 then return 0 end
local now = now_ms()
local until_ms = ARGV[2] == '0' and 0 or now + ARGV[2]
redis.call('HSET', keys.meta, 'paused', ARGV[1], 'paused_at', text(now), 'paused_until', text(until_ms), 'paused_by', ARGV[3], 'quiet', 1)
update_wakeup_target(keys)
return 1
