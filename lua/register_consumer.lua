#!lua flags=allow-oom
-- Lists a consumer of a queue, with what is known of it; again: brings its record up to date.
-- KEYS  1 queue (zset, read)  2 delayed (zset, read)  3 messages_index (zset, read)  4 message (prefix of a hash, read)
--       5 wakeup (zset)  6 meta (hash)  7 schedule_wakeup (zset, read)  8 expiry (zset, read)  9 dlx_outbox (zset, read)
--       10 dead (zset, read)  11 trash (zset, read)  12 consumers (zset)  13 consumer (prefix of a hash)  14 with_credit (zset)
-- ARGV  1 consumer  2 for how long it counts as alive without being heard of (ms)  3 priority  4 wants the queue alone (0/1)
--       then the fields of its record: name, value
-- Returns 'plain', or 'restricted' where the queue has rules for its consumers; 'exclusive' where another consumer has the queue
-- alone, 'locked' where the queue belongs to another connection, 'in use' where it cannot be had alone; 'probing' where those in the way may be dead: ask again soon. (No consumer is
-- listed then.)
-- Bound: 500 consumers that may be dead. Where one wants the queue alone, or has a priority, or is to become the active one, also a few
--       looks at each of the queue's consumers.
-- @include now
-- @include consumers
local keys = consumer_keys(0)
local now = now_ms()
local me = ARGV[1]
rebase_deadlines(keys, now, tonumber(ARGV[2]))
remove_expired(keys, now, me)
local record = redis.call('HMGET', keys.meta, 'id', 'exclusive', 'owner')
-- A consumer's name is its session's, a dot, and a number.
if record[3] and string.match(record[3], '^%S+') ~= string.match(me, '^[^.]*') then return 'locked' end

local function refusal(id, reason)
  return redis.call('HEXISTS', keys.consumer .. id, 'probed') == 1 and 'probing' or reason
end

if record[2] and record[2] ~= me and redis.call('ZSCORE', keys.consumers, record[2]) then
  return refusal(record[2], 'exclusive')
end
if ARGV[4] == '1' then
  local refused
  for _, id in ipairs(redis.call('ZRANGE', keys.consumers, 0, -1)) do
    if id ~= me and refused ~= 'in use' then refused = refusal(id, 'in use') end
  end
  if refused then return refused end
end
redis.call('HSETNX', keys.consumer .. me, 'since', text(now))
redis.call('HSET', keys.consumer .. me, 'heard', text(now), 'priority', ARGV[3], unpack(ARGV, 5))
touch_consumer(keys, me, tonumber(ARGV[2]), now)
-- A queue without a record gets none from its consumers.
if not record[1] then return 'plain' end
if ARGV[4] == '1' then redis.call('HSET', keys.meta, 'exclusive', me) end
if redis.call('HEXISTS', keys.meta, 'prioritised') == 1 then redis.call('ZADD', keys.with_credit, ARGV[3], me) end
update_consumers(keys, ARGV[3])
return redis.call('HEXISTS', keys.meta, 'restricted') == 1 and 'restricted' or 'plain'
