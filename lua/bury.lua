#!lua flags=allow-oom
-- Leaves tombstones of transient queues: a negative score in the list of queues. Removes those that are old, or beyond the
-- bound: the oldest.
-- KEYS  1 queues (zset)
-- ARGV  1 life of a tombstone (ms)  2 how many at most, then the queues
-- Returns how many tombstones went.
-- @include now
-- @include text
local now = now_ms()
for i = 3, #ARGV do redis.call('ZADD', KEYS[1], text(-now), ARGV[i]) end
local gone = redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. text(ARGV[1] - now), '(0')
local tombstones = redis.call('ZCOUNT', KEYS[1], '-inf', '(0')
if tombstones <= tonumber(ARGV[2]) then return gone end
-- The youngest have the lowest scores.
return gone + redis.call('ZREMRANGEBYRANK', KEYS[1], ARGV[2], tombstones - 1)
