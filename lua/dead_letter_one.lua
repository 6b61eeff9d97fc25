#!lua flags=allow-oom
-- Ends one message's life wherever it waits in its queue, or who has it: it becomes a dead letter.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 wakeup (zset)  6 meta (hash)
--       7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
-- ARGV  1 tag  2 reason  3 how many dead letters the queue keeps at most
-- Returns 'died'; 'dead' where it is a dead letter already; 'gone' where the queue does not have it any more.
-- Bound: a fixed number of commands, and 500 dead letters that go for it.
-- @include beside
-- @include now
-- @include state_keys
-- @include dead_letter
-- @include damaged_message
local queue, tag = state_keys(0), ARGV[1]
queue.held = beside(queue.meta, 'held')
if redis.call('ZSCORE', queue.dead, tag) or redis.call('ZSCORE', queue.dlx_outbox, tag) then return 'dead' end
local score = redis.call('ZSCORE', queue.ready, tag) or redis.call('ZSCORE', queue.held, tag) or redis.call('HGET', queue.message .. tag, 'score')
if not score then return 'gone' end
local place = false
for _, key in ipairs({ queue.ready, queue.held, queue.delayed, queue.index }) do
  if redis.call('ZSCORE', key, tag) then
    place = key
    break
  end
end
if not place then return 'gone' end
local function kill()
  dead_letter(queue, redis.call('HMGET', queue.meta, 'ttl', 'dlx'), tag, text(whole(score)), ARGV[2], now_ms())
end
-- One that is damaged is among the delayed now, and dies by the next sweep.
if contained(queue, tag, now_ms(), kill) == 'damaged' and place == queue.delayed then return 'died' end
redis.call('ZREM', place, tag)
redis.call('ZREM', queue.expiry, tag)
redis.call('HINCRBY', queue.meta, 'nacked', 1)
trim_dead(queue, tonumber(ARGV[3]), 0)
return 'died'
