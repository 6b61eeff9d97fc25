#!lua flags=allow-oom
-- Leaves tombstones of transient queues: a negative score in the list of queues. Removes those that are old, or beyond the
-- bound: the oldest.
-- KEYS  1 queues (zset)
-- ARGV  1 life of a tombstone (ms)  2 how many at most  3 whether they expired (1), or were deleted (0), then the queues. The tombstone of
--       one that expired ends with a half: a process that consumes it declares it again.
-- Returns how many tombstones went.
-- Bound: the queues that are given, and 500 tombstones that go.
-- @include now
-- @include text
local now = now_ms()
local score = text(-now) .. (ARGV[3] == '1' and '.5' or '')
for i = 4, #ARGV do redis.call('ZADD', KEYS[1], score, ARGV[i]) end
-- So many a call: the next one goes on.
local MOST = 500
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(ARGV[1] - now), '(0', 'LIMIT', 0, MOST)
if #old > 0 then redis.call('ZREM', KEYS[1], unpack(old)) end
local tombstones = redis.call('ZCOUNT', KEYS[1], '-inf', '(0')
if tombstones <= tonumber(ARGV[2]) then return #old end
-- The youngest have the lowest scores.
return #old + redis.call('ZREMRANGEBYRANK', KEYS[1], math.max(ARGV[2], tombstones - MOST), tombstones - 1)
