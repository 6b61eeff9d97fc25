#!lua flags=allow-oom
-- Replaces what a queue's record says of the arguments that only steer, under a new revision of its id: what others have read of a record
-- is right as long as its id stands (`broker/exchanges/known_queues.py`). Its messages and consumers stay.
-- KEYS  1 queue (zset, read)  2 delayed (zset, read)  3 messages_index (zset, read)  4 message (prefix of a hash, read)
--       5 wakeup (zset)  6 meta (hash)  7 schedule_wakeup (zset)  8 expiry (zset, read)  9 dlx_outbox (zset, read)
--       10 dead (zset, read)  11 trash (zset, read)  12 consumers (zset)  13 consumer (prefix of a hash)  14 with_credit (zset)
--       15 heartbeats (zset, read)  16 leader (hash, read)  17 policies (hash, read)
-- ARGV  1 id of the record as it was read  2 version of the policies as they were read  3 arguments (text)
--       4 arguments that were declared ('' = these), then the fields of the record that follow from arguments: name, value ('' =
--       without it)
-- Returns the new id; '' where the record has another id by now, or none, or the policies another version; 'COUNT' where its bytes are to
-- be limited, which were not counted before, and it has messages.
-- KEYS of its own  waiting_publishers (zset)
-- Bound: the fields that are given, and a look at each of the queue's consumers.
-- @include now
-- @include consumers
-- @include limits
-- @include queue_id
-- @include tell_processes
local keys = consumer_keys(0)
local before = redis.call('HMGET', keys.meta, 'id', 'limited', 'sac', 'owner', 'waiting_publishers')
if before[1] ~= ARGV[1] then return '' end
local versions = redis.pcall('HGET', KEYS[CONSUMER_KEYS + 1], '')
-- A key of another type has no policies.
if type(versions) ~= 'table' and (versions or '') ~= ARGV[2] then return '' end
local id = next_revision(before[1])
local set, removed = { 'id', id, 'arguments', ARGV[3] }, { 'quiet', 'pacer', 'pacer_until', 'declared' }
local now_has = {}
for i = 5, #ARGV, 2 do
  local name, value = ARGV[i], ARGV[i + 1]
  if name == 'restricted' and value == '' and before[4] then value = 'declared' end
  now_has[name] = value ~= ''
  if value == '' then
    removed[#removed + 1] = name
  else
    set[#set + 1] = name
    set[#set + 1] = value
    if name == 'limited' then now_has.bytes, now_has.limits = limits_bytes(value), value end
  end
end
local counted = before[2] and limits_bytes(before[2])
if now_has.bytes and not counted and redis.call('EXISTS', keys.ready, keys.delayed, keys.index) > 0 then return 'COUNT' end
if not now_has.bytes then removed[#removed + 1] = 'bytes' end
if before[3] and not now_has.sac then
  for _, name in ipairs({ 'active', 'takeover', 'takeover_at' }) do removed[#removed + 1] = name end
end
redis.call('HDEL', keys.meta, unpack(removed))
if ARGV[4] ~= '' then
  set[#set + 1] = 'declared'
  set[#set + 1] = ARGV[4]
end
redis.call('HSET', keys.meta, unpack(set))
if before[5] and before[2] ~= now_has.limits then
  -- Those who wait come back by themselves within a second, with their tickets, where there is still something to wait for.
  redis.call('DEL', before[5], before[5] .. ':seen')
end
update_consumers(keys)
-- Consumers may wait for another wake-up from now on.
tell_processes(keys.schedule_wakeup, redis.call('ZRANGE', keys.consumers, 0, -1), redis.call('HGET', keys.meta, 'ttl'))
return id
