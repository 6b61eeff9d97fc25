#!lua flags=allow-oom
-- Lists a queue, or a consumer, with the time until which it lives without being heard of.
-- KEYS  per entry: the list (zset)
-- ARGV  1 the list itself expires with its longest-lived member (0/1), then per entry: member, time to live (ms; '' = for ever)
-- Returns the number of entries.
-- @include now
-- @include text
local now = now_ms()
for i, list in ipairs(KEYS) do
  local ttl = ARGV[2 * i + 1]
  redis.call('ZADD', list, ttl == '' and '+inf' or text(now + ttl), ARGV[2 * i])
  if ARGV[1] == '1' then
    redis.call('ZREMRANGEBYSCORE', list, '-inf', text(now))
    redis.call('PEXPIRE', list, ttl)
  end
end
return #KEYS
