#!lua flags=allow-oom
-- Frees messages that a purge or a delete put into the trash.
-- KEYS  1 trash (zset)  2 message (prefix of a hash)
-- ARGV  1 how many at most
-- Returns how many were freed.
local popped = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
for i = 1, #popped, 2 do redis.call('UNLINK', KEYS[2] .. popped[i]) end
return #popped / 2
