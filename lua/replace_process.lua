#!lua flags=allow-oom
-- Replaces the record of a process, if it is still the one that the caller has seen: it is lost, or gone.
-- KEYS  1 processes (hash)  2 watchers (zset)  3 watch_wakeup (prefix of a zset)
-- ARGV  1 process  2 record that the caller has seen  3 new record ('' = none)
-- Returns 1; 0 where the record is another one by now, and nothing was changed.
-- Bound: a fixed number of commands.
-- @include processes
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
count_change(KEYS[1])
if redis.call('HLEN', KEYS[1]) == 1 then redis.call('DEL', KEYS[1]) end
if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 and redis.call('EXISTS', KEYS[1]) == 1 then
  -- Another process takes the free place.
  wake_standbys(KEYS[1], KEYS[2], KEYS[3])
end
return 1
