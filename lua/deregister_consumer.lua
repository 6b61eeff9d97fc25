#!lua flags=allow-oom
-- Takes a consumer off its queue's list: it was cancelled, or its connection is gone. What it held alone passes on.
-- KEYS  1 queue (zset, read)  2 delayed (zset, read)  3 messages_index (zset, read)  4 message (prefix of a hash, read)
--       5 wakeup (zset)  6 meta (hash)  7 schedule_wakeup (zset, read)  8 expiry (zset, read)  9 dlx_outbox (zset, read)
--       10 dead (zset, read)  11 trash (zset, read)  12 consumers (zset)  13 consumer (prefix of a hash)  14 with_credit (zset)
--       15 heartbeats (zset, read)  16 leader (hash, read)
-- ARGV  1 consumer
-- Returns how many consumers are left.
-- Bound: where priorities or an active consumer depend on it, a look at each of the queue's consumers.
-- @include consumers
local keys = consumer_keys(0)
-- It is not dead: what it holds is its own, and nothing is taken over.
if redis.call('HGET', keys.meta, 'active') == ARGV[1] then redis.call('HDEL', keys.meta, 'active') end
remove_consumer(keys, ARGV[1])
update_consumers(keys)
return redis.call('ZCARD', keys.consumers)
