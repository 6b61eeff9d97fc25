#!lua flags=no-writes
-- Reads what a queue has counted, and what is in it, at one moment.
-- KEYS  1 meta (hash)  2 queue (zset)  3 delayed (zset)  4 messages_index (zset)
-- KEYS of its own  held (zset, read)
-- ARGV  none
-- Returns { record (field, value, ...), ready, delayed, unacked }.
-- Bound: a fixed number of commands.
-- @include beside
local held = redis.call('ZCARD', beside(KEYS[1], 'held'))
return { redis.call('HGETALL', KEYS[1]), redis.call('ZCARD', KEYS[2]) + held, redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4]) }
