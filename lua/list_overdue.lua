#!lua flags=no-writes
-- Lists transient queues that were not heard of in time.
-- KEYS  1 queues (zset)
-- ARGV  1 how many at most
-- Returns their names, the longest overdue first.
-- Bound: the queues of ARGV 1.
-- @include now
-- @include text
return redis.call('ZRANGEBYSCORE', KEYS[1], 0, text(now_ms()), 'LIMIT', 0, ARGV[1])
