#!lua flags=allow-oom
-- Takes the consumers of a lost process off the list of a queue: by its sessions. What they had alone passes on.
-- KEYS  1 queue (zset, read)  2 delayed (zset, read)  3 messages_index (zset, read)  4 message (prefix of a hash, read)
--       5 wakeup (zset)  6 meta (hash)  7 schedule_wakeup (zset, read)  8 expiry (zset, read)  9 dlx_outbox (zset, read)
--       10 dead (zset, read)  11 trash (zset, read)  12 consumers (zset)  13 consumer (prefix of a hash)  14 with_credit (zset)
--       15 heartbeats (zset, read)  16 leader (hash, read)
-- ARGV  the sessions
-- Returns { how many consumers were removed, owner of the queue where that is one of the sessions, else '' }.
-- Bound: two looks at each of the queue's consumers.
-- @include consumers
local keys = consumer_keys(0)
local ended = {}
for _, session in ipairs(ARGV) do ended[session] = true end
local removed = 0
for _, id in ipairs(redis.call('ZRANGE', keys.consumers, 0, -1)) do
  if ended[string.match(id, '^[^.]*')] then
    remove_consumer(keys, id)
    removed = removed + 1
  end
end
if removed > 0 then update_consumers(keys) end
local owner = redis.call('HGET', keys.meta, 'owner')
return { removed, owner and ended[string.match(owner, '^%S+')] and owner or '' }
