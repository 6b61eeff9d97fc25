#!lua flags=allow-oom
-- Notes that a consumer has no credit: where consumers have priorities, others of lower ones get what comes now.
-- KEYS  1 queue (zset, read)  2 delayed (zset, read)  3 messages_index (zset, read)  4 message (prefix of a hash, read)
--       5 wakeup (zset)  6 meta (hash)  7 schedule_wakeup (zset, read)  8 expiry (zset, read)  9 dlx_outbox (zset, read)
--       10 dead (zset, read)  11 trash (zset, read)  12 consumers (zset)  13 consumer (prefix of a hash)  14 with_credit (zset)
--       15 heartbeats (zset, read)  16 leader (hash, read)
-- ARGV  1 consumer
-- Returns 1 where that changed something.
-- Bound: a fixed number of commands.
-- @include consumers
local keys = consumer_keys(0)
local changed = redis.call('ZREM', keys.with_credit, ARGV[1])
if changed == 1 then notify_next(keys) end
return changed
