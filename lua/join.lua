#!lua flags=allow-oom
-- Lists a consumer of a queue, with what is known of it; again: brings its record up to date.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 bell (zset)  6 meta (hash)
--       7 timer (zset)  8 expiry (zset)  9 dying (zset)  10 dead (zset)  11 trash (zset)  12 consumers (zset)
--       13 consumer (prefix of a hash)  14 interested (zset)
-- ARGV  1 consumer  2 for how long it counts as alive without being heard of (ms), then the fields of its record: name, value
-- Returns 'ok'.
-- @include now
-- @include crew
local crew = crew_of(0)
local now = now_ms()
bury(crew, now)
redis.call('HSET', crew.consumer .. ARGV[1], 'heard', text(now), unpack(ARGV, 3))
redis.call('HSETNX', crew.consumer .. ARGV[1], 'since', text(now))
alive(crew, ARGV[1], tonumber(ARGV[2]), now)
return 'ok'
