#!lua flags=allow-oom
-- Tells one life of the database from the next: the mark that the first who asked has left, gone with a flush.
-- KEYS  1 epoch (string)
-- ARGV  1 the mark to leave where there is none
-- Returns the mark that stands.
redis.call('SETNX', KEYS[1], ARGV[1])
return redis.call('GET', KEYS[1])
