#!lua flags=allow-oom
-- Takes a consumer off its queue's list: it was cancelled, or its connection is gone. What it held alone passes on.
-- KEYS  1 queue (zset, read)  2 delayed (zset, read)  3 messages_index (zset, read)  4 message (prefix of a hash, read)
--       5 bell (zset)  6 meta (hash)  7 timer (zset, read)  8 expiry (zset, read)  9 dying (zset, read)  10 dead (zset, read)
--       11 trash (zset, read)  12 consumers (zset)  13 consumer (prefix of a hash)  14 interested (zset)
-- ARGV  1 consumer
-- Returns how many consumers are left.
-- @include now
-- @include consumers
local crew = crew_of(0)
-- It is not dead: what it holds is its own, and nothing is taken over.
if redis.call('HGET', crew.meta, 'active') == ARGV[1] then redis.call('HDEL', crew.meta, 'active') end
forget(crew, ARGV[1])
bury(crew, now_ms())
review(crew)
return redis.call('ZCARD', crew.consumers)
