#!lua flags=allow-oom
-- Puts messages back that their consumer sent back, or did not settle in time: each waits for the queue's back-off, or a pause that
-- grows each time, and dies at the delivery limit.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 wakeup (zset)  6 meta (hash)
--       7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
-- ARGV  1 delivery limit of queues without their own (-1 = none)  2 how many dead letters the queue keeps at most
--       3 how: 'failed', 'asked', 'timed_out' (include/return_to_queue.lua)
--       then triples: tag, claim number, ms for which it waits (-1 = as its queue says); one with an old claim number changes nothing
-- Returns { how many left the consumer, how many of them died, how many old dead letters had to go, deaths as return_to_queue.lua has them,
-- { tag, headers and properties of one that pauses for the first time } }.
-- Bound: the messages that are given, and 500 dead letters that go for them.
-- @include now
-- @include state_keys
-- @include return_to_queue
-- @include damaged_message
-- @include notify
local queue = state_keys(0)
local now = now_ms()
local rules = redis.call('HMGET', queue.meta, unpack(FAILURE_RULES))
local went = { ready = 0, delayed = 0, dead = 0, damaged = 0, failed = 0 }
local paused = {}
for i = 4, #ARGV, 3 do
  local tag = ARGV[i]
  local hash = queue.message .. tag
  local fields = fields_of(hash, 'claim', 'score', 'expires')
  if fields[1] == ARGV[i + 1] and fields[2] and redis.call('ZSCORE', queue.index, tag) then
    redis.call('HSET', hash, 'seen', 1)
    local place, attempt = attempted(queue, tag, now, return_failed, queue, rules, ARGV[1], tag, fields[2], fields[3], now, ARGV[3],
      nil, tonumber(ARGV[i + 2]))
    if place ~= 'failed' then redis.call('ZREM', queue.index, tag) end
    went[place] = went[place] + 1
    if attempt == 2 and not rules[4] and #paused == 0 then paused = { tag, envelope_of(hash) } end
  end
end
if went.ready > 0 then notify(queue.wakeup, queue.meta) end
local evicted = went.dead > 0 and trim_dead(queue, tonumber(ARGV[2]), 0) or 0
local nacked = went.ready + went.delayed + went.dead + went.damaged
if nacked > 0 then redis.call('HINCRBY', queue.meta, 'nacked', nacked) end
raise_failure()
return { nacked, went.dead, evicted, deaths, paused }
