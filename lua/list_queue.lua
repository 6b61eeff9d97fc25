#!lua flags=allow-oom
-- Lists a queue with the time until which it lives without being heard of.
-- KEYS  1 queues (zset)
-- ARGV  1 queue  2 time to live (ms; '' = for ever)
-- Returns 1 for a queue that was not listed.
-- Bound: a fixed number of commands.
-- @include now
-- @include text
return redis.call('ZADD', KEYS[1], ARGV[2] == '' and '+inf' or text(now_ms() + ARGV[2]), ARGV[1])
