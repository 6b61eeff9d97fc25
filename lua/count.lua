#!lua flags=allow-oom
-- Moves one counter of a queue's record on.
-- KEYS  1 meta (hash)
-- ARGV  1 counter
-- Returns where it stands.
return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
