#!lua flags=allow-oom
-- Sets whether and how the events of a queue's messages are written.
-- KEYS  1 meta (hash)
-- ARGV  1 record of its events; '' = they are not written
-- Returns 1, or 0 where the queue has no record.
-- Bound: a fixed number of commands.
if redis.call('HEXISTS', KEYS[1], 'id') == 0 then return 0 end
if ARGV[1] ~= '' then redis.call('HSET', KEYS[1], 'event_log', ARGV[1]) else redis.call('HDEL', KEYS[1], 'event_log') end
return 1
