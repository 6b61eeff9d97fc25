#!lua flags=allow-oom
-- Puts a queue's waiting messages, ready, held and delayed, into its trash in one step; the sweep empties the trash in batches.
-- KEYS  1 trash (zset)  2 meta (hash)  3 wakeup (zset)  4 expiry (zset)  5 groups (zset)  6 messages_index (zset, read)
--       7.. queue (zset), delayed (zset), held (zset)
-- KEYS of its own  limited (zset)  limited_until (zset)
-- ARGV  none
-- Returns how many messages went.
-- Bound: a fixed number of commands: a RENAME costs the same however many messages there are.
-- @include beside
-- @include now
-- @include release_capacity
-- @include to_trash
local purged = to_trash(KEYS[1], { unpack(KEYS, 7) })
redis.call('UNLINK', KEYS[3], KEYS[4], beside(KEYS[2], 'limited'), beside(KEYS[2], 'limited_until'))
-- Where consumers have some, those that go leave their groups as the trash is emptied.
if purged > 0 and redis.call('EXISTS', KEYS[6]) == 0 then redis.call('UNLINK', KEYS[5]) end
if purged > 0 and redis.call('EXISTS', KEYS[2]) == 1 then redis.call('HINCRBY', KEYS[2], 'purged', purged) end
release_capacity(KEYS[2], purged, 0, 'gone', now_ms())
return purged
