#!lua flags=allow-oom
-- Takes a publisher out of the line of those that wait for room, and wakes the next: it may have been notified itself.
-- KEYS  1 waiting_publishers (zset)  2 meta (hash) of a queue, or fanout (hash)
-- ARGV  1 waiter  2 its message was refused, and counts as such (0/1)
-- Returns 1 where it stood in the line, else 0.
-- Bound: a fixed number of commands.
-- @include now
-- @include waiting_publishers
local stood = redis.call('ZSCORE', KEYS[1], ARGV[1]) and 1 or 0
leave_wait_queue(KEYS[1], ARGV[1])
notify_publishers(KEYS[1], 1, now_ms())
if ARGV[2] == '1' and redis.call('HEXISTS', KEYS[2], 'limited') == 1 then redis.call('HINCRBY', KEYS[2], 'rejected', 1) end
return stood
