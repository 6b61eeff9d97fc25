#!lua flags=allow-oom
-- Replaces the record of a process, if it is still the one that the caller has seen: it is lost, or gone. It leads no more.
-- KEYS  1 processes (hash)  2 heartbeats (zset)  3 leader (hash)
-- ARGV  1 process  2 record that the caller has seen  3 new record ('' = none)  4 the caller's epoch as leader ('' = its own record)
--       5 by how much its heartbeat has to be overdue (ms, 0 = not at all)
-- Returns 1; 0 where the record is another one by now, another process leads, or this one was heard of, and nothing was changed.
-- Bound: a fixed number of commands.
-- @include processes
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
local leader = redis.call('HMGET', KEYS[3], 'process', 'epoch')
if ARGV[4] ~= '' and leader[2] ~= ARGV[4] then return 0 end
local silent = tonumber(ARGV[5])
if silent > 0 and now_ms() - (tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1])) or 0) < silent then return 0 end
-- Its consumers count no more.
redis.call('ZREM', KEYS[2], ARGV[1])
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
count_change(KEYS[1])
if leader[1] == ARGV[1] then redis.call('HDEL', KEYS[3], 'process', 'until') end
if redis.call('HLEN', KEYS[1]) == 1 then redis.call('UNLINK', KEYS[1], KEYS[2]) end
return 1
