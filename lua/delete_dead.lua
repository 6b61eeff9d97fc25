#!lua flags=allow-oom
-- Deletes dead letters of one queue: those named, or all.
-- KEYS  1 dead (zset)  2 trash (zset)  3 message (prefix of a hash)  4 meta (hash)
-- ARGV  tags; none = all, which go to the trash for the caller to empty
-- Returns how many went.
-- @include event
local gone = 0
if #ARGV == 0 then
  gone = redis.call('ZCARD', KEYS[1])
  if gone > 0 then
    if redis.call('EXISTS', KEYS[2]) == 0 then
      redis.call('RENAME', KEYS[1], KEYS[2])
    else
      redis.call('ZUNIONSTORE', KEYS[2], 2, KEYS[2], KEYS[1])
      redis.call('DEL', KEYS[1])
    end
  end
end
for _, tag in ipairs(ARGV) do
  if redis.call('ZSCORE', KEYS[1], tag) then
    redis.call('UNLINK', KEYS[3] .. tag)
    redis.call('ZREM', KEYS[1], tag)
    gone = gone + 1
    tell(KEYS[4], tag, 'cancelled', {})
  end
end
if gone > 0 then redis.call('HINCRBY', KEYS[4], 'dead_deleted', gone) end
return gone
