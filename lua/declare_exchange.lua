#!lua flags=allow-oom
-- Writes an exchange's record unless there is one; and its limits, if it is a fanout exchange with some.
-- KEYS  1 exchanges (hash)  [2 fanout (hash)]
-- ARGV  1 exchange  2 record (text)  [3 limits  4 arguments, as publishers read them]
-- Returns the record that stands.
-- Bound: a fixed number of commands.
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
local stands = redis.call('HGET', KEYS[1], ARGV[1])
-- Also where the record stands: the other key may be lost alone.
if KEYS[2] and stands == ARGV[2] then redis.call('HSET', KEYS[2], 'limited', ARGV[3], 'arguments', ARGV[4]) end
return stands
