#!lua flags=allow-oom
-- Notes that a message that came from another broker is gone there: the last step of its move.
-- KEYS  1 moved_in (zset)
-- ARGV  1 id of the move  2 for how long the ids of finished moves are kept (ms)
-- Returns 1.
-- Bound: a fixed number of commands.
-- @include now
redis.call('ZADD', KEYS[1], 'XX', now_ms(), ARGV[1])
if redis.call('ZCOUNT', KEYS[1], '+inf', '+inf') == 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
