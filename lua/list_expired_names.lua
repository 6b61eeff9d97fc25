#!lua flags=no-writes
-- Names the tasks of which some expired and wait for a worker that has them.
-- KEYS  1 expired_names (zset)
-- ARGV  none
-- Returns { name, ms since the latest death of such a task, ... }
-- @include now
local now = now_ms()
local reply = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 2, #reply, 2 do reply[i] = math.floor(now - reply[i]) end
return reply
