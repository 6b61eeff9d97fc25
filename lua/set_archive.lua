#!lua flags=allow-oom
-- Sets whether and how the events of a queue's messages are written.
-- KEYS  1 meta (hash)
-- ARGV  1 record of its events; '' = they are not written
-- Returns 1, or 0 where the queue has no record.
local record = redis.call('HMGET', KEYS[1], 'id', 'archive')
if not record[1] then return 0 end
if (record[2] or '') == ARGV[1] then return 1 end
-- `log` is what the quick way knows of the former one (include/quick_event).
redis.call('HDEL', KEYS[1], 'log')
if ARGV[1] ~= '' then redis.call('HSET', KEYS[1], 'archive', ARGV[1]) else redis.call('HDEL', KEYS[1], 'archive') end
return 1
