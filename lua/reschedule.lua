#!lua flags=allow-oom
-- Gives a message that nobody has yet, ready or delayed, another time.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 bell (zset)  6 meta (hash)
--       7 timer (zset)  8 expiry (zset)  9 dying (zset)  10 dead (zset)  11 trash (zset)
-- ARGV  1 tag  2 eta (ms since the epoch, '+ms' from now, 0 = now)
-- Returns 1, or 0 where it does not wait.
-- @include now
-- @include places
-- @include put_back
-- @include lifetime
-- @include waiting
local queue, tag = places(0), ARGV[1]
local hash = queue.message .. tag
local score, due = take_waiting(queue, tag)
if not score then return 0 end
local now = now_ms()
local eta = string.sub(ARGV[2], 1, 1) == '+' and now + tonumber(ARGV[2]) or tonumber(ARGV[2])
local fields = redis.call('HMGET', hash, 'lives', 'expires')
if eta > now then
  redis.call('HSET', hash, 'score', score)
  redis.call('ZADD', queue.delayed, text(eta), tag)
  redis.call('ZADD', queue.timer, 0, 'due')
  tell(queue.meta, tag, 'delayed', { reason = 'rescheduled', delay = text(eta - now) })
else
  local expires = expiry_of(tonumber(fields[1]), tonumber(fields[2]), now)
  redis.call('HDEL', hash, 'score', 'lives')
  if expires then redis.call('HSET', hash, 'expires', text(expires)) end
  put_back(queue, tag, score, expires and text(expires))
  redis.call('ZADD', redis.call('HGET', queue.meta, 'bell') or queue.bell, 0, 'work')
  if due then tell(queue.meta, tag, 'promoted', { reason = 'rescheduled' }) end
end
local ttl = redis.call('HGET', queue.meta, 'ttl')
if ttl then
  for _, key in ipairs({ queue.ready, queue.delayed, queue.expiry }) do redis.call('PEXPIRE', key, ttl) end
end
return 1
