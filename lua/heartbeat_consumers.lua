#!lua flags=allow-oom
-- Heartbeat of a process's consumers; finds the dead ones of their queues.
-- KEYS  per queue: queue (zset, read), delayed (zset, read), messages_index (zset, read), message (prefix of a hash, read),
--       wakeup (zset), meta (hash), schedule_wakeup (zset, read), expiry (zset, read), dlx_outbox (zset, read),
--       dead (zset, read), trash (zset, read), consumers (zset), consumer (prefix of a hash), with_credit (zset)
-- ARGV  1 for how long a consumer counts as alive without being heard of (ms), then per queue: consumer, state
-- Returns per queue: known (0 = it is not on the list any more and has to join again), ms until the next consumer of a queue
-- with rules counts as dead if it is not heard of, or one was probed (-1 = no process has to look), why the queue is paused ('' = it
-- is not), until when (ms since the epoch, 0 = for good), how many consumers the queue has, and why this could not be done ('' = it
-- was): a key of another type, or a field that is no number, is the matter of its own queue.
-- Bound: the consumers that are given, and 500 that may be dead, over all queues. Of queues with rules, where the one that had the queue
--       is gone, a few looks at each of the queue's consumers.
-- @include now
-- @include consumers
local now = now_ms()
local timeout_ms = tonumber(ARGV[1])
local reply = {}

local function beat(keys, id, state)
  local listed = redis.call('HMGET', keys.consumer .. id, 'since', 'priority')
  local known = listed[1] and redis.call('ZSCORE', keys.consumers, id) and 1 or 0
  if known == 1 then
    redis.call('HSET', keys.consumer .. id, 'state', state, 'heard', text(now))
    touch_consumer(keys, id, timeout_ms, now)
  end
  rebase_deadlines(keys, now, timeout_ms)
  remove_expired(keys, now, id)
  local record = redis.call('HMGET', keys.meta, 'restricted', 'paused', 'paused_until', 'sac', 'active', 'exclusive', 'prioritised')
  local next_death = -1
  if known == 1 and (listed[2] or '0') ~= '0' and not record[7] then
    -- The record was lost meanwhile.
    update_consumers(keys, listed[2])
  elseif record[1] then
    if is_consistent(keys, { record[4], record[5], record[6] }) then
      -- What an eviction took of the rules stands again.
      update_wakeup_target(keys)
    else
      update_consumers(keys)
    end
  end
  local first = redis.call('ZRANGE', keys.consumers, 0, 0, 'WITHSCORES')
  local left = first[2] and tonumber(first[2]) - now
  if left and (record[1] or left <= ANSWER_MS) then next_death = math.max(0, left) end
  local until_ms = tonumber(record[3] or 0)
  local paused = record[2] and (until_ms == 0 or until_ms > now)
  return { known, next_death, paused and record[2] or '', text(until_ms), redis.call('ZCARD', keys.consumers), '' }
end

for i = 0, #KEYS / CONSUMER_KEYS - 1 do
  local fine, values = pcall(beat, consumer_keys(i * CONSUMER_KEYS), ARGV[2 * i + 2], ARGV[2 * i + 3])
  if not fine then values = { 1, -1, '', '0', 1, type(values) == 'table' and values.err or tostring(values) } end
  for _, value in ipairs(values) do reply[#reply + 1] = value end
end
return reply
