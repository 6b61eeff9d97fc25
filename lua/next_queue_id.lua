#!lua flags=allow-oom
-- Draws the next queue id. Apart from `declare`, whose keys are another slot's on a cluster.
-- KEYS  1 queue_ids (string)
-- ARGV  1 the number after which ids begin
-- Returns the id.
-- Bound: a fixed number of commands.
local id = redis.call('INCR', KEYS[1])
if id <= tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
  id = redis.call('INCR', KEYS[1])
end
return id
