#!lua flags=allow-oom
-- Deletes dead letters of one queue: those named, or all.
-- KEYS  1 dead (zset)  2 trash (zset)  3 message (prefix of a hash)  4 meta (hash)
-- ARGV  tags; none = all, which go to the trash for the caller to empty
-- Returns how many went.
-- Bound: the tags that are given; without any, a RENAME.
-- @include log_event
-- @include to_trash
local gone = #ARGV == 0 and to_trash(KEYS[2], { KEYS[1] }) or 0
for _, tag in ipairs(ARGV) do
  if redis.call('ZSCORE', KEYS[1], tag) then
    redis.call('UNLINK', KEYS[3] .. tag)
    redis.call('ZREM', KEYS[1], tag)
    gone = gone + 1
    log_event(KEYS[4], tag, 'cancelled', {})
  end
end
if gone > 0 then redis.call('HINCRBY', KEYS[4], 'dead_deleted', gone) end
return gone
