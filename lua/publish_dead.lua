#!lua
-- Puts one message without a recipient straight into a queue's dead letters, once, however often its publisher retries.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset, read)  4 message (prefix of a hash)  5 wakeup (zset)
--       6 meta (hash)  7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
--       12 producer (string)  [13 message of a staged body (hash)]
-- ARGV  1 payload  2 rank (0-255, 0 first)  3 eta: not heeded  4 number of the message on its connection  5 retry (0/1)
--       6 dedup window (ms)  7 expiry: not used  8 reason  9 how many dead letters the queue keeps at most
--       10 description of the message for events ('' = none was made)
-- Returns the tag; '' for a duplicate; 'NOQUEUE' where the queue has no record, 'NEED_METADATA' where its events are written and
-- there is no description (nothing is written then).
-- Bound: a fixed number of commands.
-- @include enqueue
-- @include idempotent_publish
-- @include state_keys
-- @include dead_letter
local queue, producer, staged = state_keys(0), KEYS[12], KEYS[13]
local record = redis.call('HMGET', queue.meta, unpack(RECORD))
if not record[1] then return 'NOQUEUE' end
if record[6] and ARGV[10] == '' then
  if KEYS[13] then redis.call('UNLINK', KEYS[13]) end
  return 'NEED_METADATA'
end
record.description = ARGV[10]
if staged and redis.call('EXISTS', staged) == 0 then
  if was_stored(producer, ARGV[4]) then return '' end
  return redis.error_reply('ERR the staged body is gone')
end
if not accept(producer, ARGV[4], ARGV[5] == '1', ARGV[6]) then
  if staged and ARGV[5] == '1' then redis.call('UNLINK', staged) end
  return ''
end
-- It begins where those in the outbox are, without a wake-up, an expiry and a group: consumers must not see it.
record[4], record[8], record[12] = false, true, false
local tag = enqueue(queue.meta, queue.dlx_outbox, queue.delayed, queue.message, queue.wakeup, queue.schedule_wakeup, record,
  ARGV[1], tonumber(ARGV[2]), '0', staged, queue.expiry, '')
local rules = redis.call('HMGET', queue.meta, 'ttl', 'dlx')
dead_letter(queue, rules, tag, redis.call('ZSCORE', queue.dlx_outbox, tag), ARGV[8], now_ms())
if not rules[2] then redis.call('ZREM', queue.dlx_outbox, tag) end
remember_number(producer, ARGV[4], ARGV[5] == '1', ARGV[6])
redis.call('HINCRBY', queue.meta, 'nacked', 1)
trim_dead(queue, tonumber(ARGV[9]), 0)
return tag
