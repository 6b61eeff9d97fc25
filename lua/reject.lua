#!lua flags=allow-oom
-- Ends rejected messages: to the dead-letter exchange or the queue's dead letters. A transient queue without an exchange keeps
-- none: there they are removed and counted.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 wakeup (zset, read)
--       6 meta (hash)  7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
-- ARGV  1 reason  2 how many dead letters the queue keeps at most, then pairs: tag, claim number (a stale one changes nothing)
-- Returns { how many were moved or removed, how many old dead letters had to go }.
-- Bound: the tags that are given, and 500 dead letters that go for them.
-- @include now
-- @include state_keys
-- @include dead_letter
-- @include damaged_message
local queue = state_keys(0)
local now = now_ms()
local record = redis.call('HMGET', queue.meta, 'ttl', 'dlx')
local moved = 0
local function reject(tag, score)
  -- RabbitMQ counts a rejection as a failed delivery, too.
  redis.call('HINCRBY', queue.message .. tag, 'failed', 1)
  dead_letter(queue, record, tag, text(whole(score)), ARGV[1], now)
end
for i = 3, #ARGV, 2 do
  local tag = ARGV[i]
  local fields = fields_of(queue.message .. tag, 'claim', 'score')
  if fields[1] == ARGV[i + 1] and fields[2] and redis.call('ZSCORE', queue.index, tag) then
    if attempted(queue, tag, now, reject, tag, fields[2]) ~= 'failed' then
      moved = moved + 1
      redis.call('ZREM', queue.index, tag)
    end
  end
end
if moved > 0 then redis.call('HINCRBY', queue.meta, 'nacked', moved) end
raise_failure()
return { moved, trim_dead(queue, tonumber(ARGV[2]), 0) }
