#!lua flags=allow-oom
-- Leaves tombstones of transient queues: a negative score in the list of queues. Removes those that are old.
-- KEYS  1 queues (zset)
-- ARGV  1 life of a tombstone (ms), then the queues
-- Returns how many tombstones went.
-- @include now
-- @include text
local now = now_ms()
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], text(-now), ARGV[i]) end
return redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. text(ARGV[1] - now), '(0')
