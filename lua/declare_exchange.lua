#!lua flags=allow-oom
-- Writes an exchange's record unless there is one.
-- KEYS  1 exchanges (hash)
-- ARGV  1 exchange  2 record (text)
-- Returns the record that stands.
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
