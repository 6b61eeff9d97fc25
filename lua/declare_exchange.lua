#!lua flags=allow-oom
-- Writes an exchange's record unless there is one that can be read; and its limits, if it is a fanout exchange with some.
-- KEYS  1 exchanges (hash)  [2 fanout (hash)]
-- ARGV  1 exchange  2 record (text)  3 record that cannot be read, and is replaced where it stands; '' = none
--       [4 limits  5 arguments, as publishers read them]
-- Returns the record that stands.
-- Bound: a fixed number of commands.
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[3] then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
local stands = redis.call('HGET', KEYS[1], ARGV[1])
-- Also where the record stands: the other key may be lost alone.
if KEYS[2] and stands == ARGV[2] then redis.call('HSET', KEYS[2], 'limited', ARGV[4], 'arguments', ARGV[5]) end
return stands
