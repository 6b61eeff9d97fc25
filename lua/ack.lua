#!lua flags=allow-oom
-- Removes settled messages for good. No fence: whoever finished the work may remove it, wherever it stands by now.
-- KEYS  1 messages_index (zset)  2 queue (zset)  3 delayed (zset)  4 message (prefix of a hash)
-- ARGV  tags
-- Returns how many were still there.
local removed = 0
for _, tag in ipairs(ARGV) do
  if redis.call('UNLINK', KEYS[4] .. tag) == 1 then
    removed = removed + 1
    if redis.call('ZREM', KEYS[1], tag) == 0 and redis.call('ZREM', KEYS[2], tag) == 0 then
      redis.call('ZREM', KEYS[3], tag)
    end
  end
end
return removed
