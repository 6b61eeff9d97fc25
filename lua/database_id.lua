#!lua flags=allow-oom
-- Tells one database from another, such as a flushed one: by the id that the first caller has left, gone with a flush.
-- KEYS  1 database_id (string)
-- ARGV  1 the id to leave where there is none
-- Returns the id that stands.
-- Bound: a fixed number of commands.
redis.call('SETNX', KEYS[1], ARGV[1])
return redis.call('GET', KEYS[1])
