#!lua flags=allow-oom
-- Wakes a consumer if there is something to take: a limit may have given way.
-- KEYS  1 queue (zset, read)  2 wakeup (zset)  3 meta (hash, read)
-- ARGV  none
-- Returns 1 where it rang.
-- Bound: a fixed number of commands.
-- @include notify
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
notify(KEYS[2], KEYS[3])
return 1
