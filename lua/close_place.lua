#!lua flags=allow-oom
-- Notes that the place of a queue in its old shard is swept now, and closes it: nobody publishes there from now on. Consumers go on.
-- KEYS  1 meta (hash)
-- ARGV  1 close it (0/1)
-- Returns 1.
-- Bound: a fixed number of commands.
-- @include now
-- @include text
-- `sweep.lua` notes it only in a record with an id; without a note it would take each pass for the first one after an outage.
redis.call('HSET', KEYS[1], 'swept', text(now_ms()))
if ARGV[1] == '1' then
  -- The first claim of a queue without an id would remove its record.
  redis.call('HSETNX', KEYS[1], 'delivered', 1)
  redis.call('HDEL', KEYS[1], 'id', 'expires', 'ttl')
  redis.call('PERSIST', KEYS[1])
end
return 1
