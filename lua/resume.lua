#!lua flags=allow-oom
-- Ends a queue's pause and wakes a consumer if there is work.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 bell (zset)  6 meta (hash)
--       7 timer (zset)  8 expiry (zset)  9 dying (zset)  10 dead (zset)  11 trash (zset)  12 consumers (zset)
--       13 consumer (prefix of a hash)  14 interested (zset)
-- ARGV  none
-- Returns 1; 0 where the queue was not paused.
-- @include crew
local crew = crew_of(0)
if redis.call('HDEL', crew.meta, 'paused', 'paused_at', 'paused_until', 'quiet') == 0 then return 0 end
wake(crew)
return 1
