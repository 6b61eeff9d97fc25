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
-- So many a call: the next one goes on.
local MOST = 500
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(ARGV[1] - now), '(0', 'LIMIT', 0, MOST)
if #old > 0 then redis.call('ZREM', KEYS[1], unpack(old)) end
local tombstones = redis.call('ZCOUNT', KEYS[1], '-inf', '(0')
if tombstones <= tonumber(ARGV[2]) then return #old end
-- The youngest have the lowest scores.
return #old + redis.call('ZREMRANGEBYRANK', KEYS[1], math.max(ARGV[2], tombstones - MOST), tombstones - 1)
