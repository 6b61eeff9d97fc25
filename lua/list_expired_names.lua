#!lua flags=allow-oom
-- Names the tasks of which some expired and wait for a worker that has them. A death ahead of the clock was noted before the clock
-- went back: it counts from now on.
-- KEYS  1 expired_names (zset)
-- ARGV  none
-- Returns { name, ms since the latest death of such a task, ... }
-- @include now
-- @include text
local now = now_ms()
local reply = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 2, #reply, 2 do
  local age = math.floor(now - reply[i])
  if age < 0 then
    redis.call('ZADD', KEYS[1], text(now), reply[i - 1])
    age = 0
  end
  reply[i] = age
end
return reply
