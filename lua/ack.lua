#!lua flags=allow-oom
-- Removes settled messages for good. No fence: whoever finished the work may remove it, wherever it stands by now.
-- KEYS  1 messages_index (zset)  2 queue (zset)  3 delayed (zset)  4 dead (zset)  5 dying (zset)  6 message (prefix of a hash)
-- ARGV  tags
-- Returns how many were still there.
local removed = 0
for _, tag in ipairs(ARGV) do
  if redis.call('UNLINK', KEYS[6] .. tag) == 1 then
    removed = removed + 1
    for place = 1, 5 do
      if redis.call('ZREM', KEYS[place], tag) == 1 then break end
    end
  end
end
return removed
