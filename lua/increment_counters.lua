#!lua flags=allow-oom
-- Moves one counter of a queue's record on.
-- KEYS  1 meta (hash)
-- ARGV  1 counter  2 only of a queue that there is (0/1)
-- Returns where it stands; 0 where there is no such queue.
-- Bound: a fixed number of commands.
if ARGV[2] == '1' and redis.call('HEXISTS', KEYS[1], 'id') == 0 then return 0 end
return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
