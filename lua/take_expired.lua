#!lua flags=allow-oom
-- Takes tasks that expired for a worker, which revokes them; who does not say that it has, leaves them to others.
-- KEYS  1 expired (zset)  2 expired task (prefix of a hash)
-- ARGV  1 how many at most  2 for how long others leave them alone (ms)  3 bytes after which no further one is taken
-- Returns { how many stand there in all, tag, time of death (ms), payload, body, ... }, '' for a body that stands in its payload.
-- @include now
-- @include text
-- @include expired
local now, bytes = now_ms(), tonumber(ARGV[3])
local outbox = { tasks = KEYS[1], task = KEYS[2] }
local reply = { redis.call('ZCARD', KEYS[1]) }
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, ARGV[1])) do
  if bytes <= 0 then break end
  local fields = redis.call('HMGET', KEYS[2] .. tag, 'died', 'payload', 'body')
  if fields[1] and now - fields[1] > OUTBOX_AGE then
    drop_unrevoked(outbox, { tag })
  elseif fields[2] then
    redis.call('ZADD', KEYS[1], text(now + ARGV[2]), tag)
    bytes = bytes - #fields[2] - #(fields[3] or '')
    for _, value in ipairs({ tag, fields[1], fields[2], fields[3] or '' }) do reply[#reply + 1] = value end
  else
    redis.call('ZREM', KEYS[1], tag)
  end
end
return reply
