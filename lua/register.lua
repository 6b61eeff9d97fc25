#!lua flags=allow-oom
-- Lists a queue, or a consumer, with the time until which it lives without being heard of.
-- KEYS  per entry: the list (zset)
-- ARGV  per entry: member, time to live (ms; '' = for ever)
-- Returns the number of entries.
-- @include now
-- @include text
local now = now_ms()
for i, list in ipairs(KEYS) do
  local ttl = ARGV[2 * i]
  redis.call('ZADD', list, ttl == '' and '+inf' or text(now + ttl), ARGV[2 * i - 1])
end
return #KEYS
