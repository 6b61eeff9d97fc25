#!lua flags=allow-oom
-- Puts claimed messages back to their original place: a rejected one with requeue, or one handed back unstarted.
-- KEYS  1 queue (zset)  2 messages_index (zset)  3 message (prefix of a hash)  4 bell (zset)
-- ARGV  1 counts as a failure (0/1)  2 was seen by the consumer, so it is redelivered next time (0/1)
--       then pairs: tag, claim number; a pair with an old claim number changes nothing
-- Returns how many went back.
local returned = 0
for i = 3, #ARGV, 2 do
  local tag = ARGV[i]
  local hash = KEYS[3] .. tag
  local fields = redis.call('HMGET', hash, 'claim', 'score')
  if fields[1] == ARGV[i + 1] and fields[2] and redis.call('ZREM', KEYS[2], tag) == 1 then
    redis.call('ZADD', KEYS[1], fields[2], tag)
    redis.call('HDEL', hash, 'score', 'by')
    if ARGV[1] == '1' then redis.call('HINCRBY', hash, 'failed', 1) end
    if ARGV[2] == '1' then redis.call('HSET', hash, 'seen', 1) end
    returned = returned + 1
  end
end
if returned > 0 then redis.call('ZADD', KEYS[4], 0, 'work') end
return returned
