#!lua flags=allow-oom
-- Leaves expired tasks, which the caller has taken and cannot revoke, to other workers.
-- KEYS  1 expired (zset)  2 bell (zset)
-- ARGV  1 ring for them (0/1), then tags
-- Returns how many are left there.
-- @include now
-- @include text
local left = 0
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    left = left + 1
    redis.call('ZADD', KEYS[1], text(now_ms()), ARGV[i])
  end
end
if left > 0 and ARGV[1] == '1' then redis.call('ZADD', KEYS[2], 0, 'due') end
return left
