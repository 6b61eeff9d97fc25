#!lua flags=no-writes
-- Counts a queue's live consumers: the list also has those that are overdue and not missed yet.
-- KEYS  1 consumers (zset)
-- ARGV  none
-- Returns how many there are.
-- Bound: a fixed number of commands.
-- @include now
-- @include text
return redis.call('ZCOUNT', KEYS[1], '(' .. text(now_ms()), '+inf')
