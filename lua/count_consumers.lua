#!lua flags=no-writes
-- Counts a queue's live consumers: the list also has those whose processes are silent, and not missed yet.
-- KEYS  1 consumers (zset)  2 consumer (prefix of a hash)  3 heartbeats (zset)
-- ARGV  none
-- Returns how many there are.
-- Bound: two looks at each of the queue's consumers.
-- @include living
return #living(KEYS[1], KEYS[2], KEYS[3])
