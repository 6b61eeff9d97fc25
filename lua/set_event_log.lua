#!lua flags=allow-oom
-- Sets whether and how the events of a queue's messages are written. Readers find the queue among the event logs before its first event.
-- KEYS  1 meta (hash)  2 event_logs (set)
-- ARGV  1 record of its events; '' = they are not written, and those that there are end (`end_event_log.lua`)  2 queue
-- Returns 1, or 0 where the queue has no record.
-- Bound: a fixed number of commands.
if redis.call('HEXISTS', KEYS[1], 'id') == 0 then return 0 end
if ARGV[1] ~= '' then
  redis.call('SADD', KEYS[2], ARGV[2])
  redis.call('HSET', KEYS[1], 'event_log', ARGV[1])
else
  redis.call('HDEL', KEYS[1], 'event_log')
end
return 1
