#!lua flags=allow-oom
-- Puts a queue's waiting messages, ready and delayed, into its trash in one step; the sweep empties the trash in batches.
-- KEYS  1 trash (zset)  2 meta (hash)  3 bell (zset)  4 expiry (zset)  5.. the sets to empty (zsets)
-- ARGV  none
-- Returns how many messages went.
-- @include now
-- @include room
local purged = 0
for i = 5, #KEYS do
  local count = redis.call('ZCARD', KEYS[i])
  if count > 0 then
    purged = purged + count
    if redis.call('EXISTS', KEYS[1]) == 0 then
      redis.call('RENAME', KEYS[i], KEYS[1])
    else
      redis.call('ZUNIONSTORE', KEYS[1], 2, KEYS[1], KEYS[i])
      redis.call('UNLINK', KEYS[i])
    end
  end
end
redis.call('DEL', KEYS[3], KEYS[4])
if purged > 0 and redis.call('EXISTS', KEYS[2]) == 1 then redis.call('HINCRBY', KEYS[2], 'purged', purged) end
make_room(KEYS[2], purged, 0, 'gone', now_ms())
return purged
