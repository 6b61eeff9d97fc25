#!lua flags=allow-oom
-- Tells of a process' consumers in which state they are, and whether they are still on the lists of their queues; and how these are.
-- The record of a transient queue is kept alive here where nothing was ever published. Such are the control queues of Celery's workers,
-- whose broadcasts come by a stream.
-- KEYS  per queue: queue (zset, read), delayed (zset, read), messages_index (zset, read), message (prefix of a hash, read),
--       wakeup (zset), meta (hash), schedule_wakeup (zset, read), expiry (zset, read), dlx_outbox (zset, read),
--       dead (zset, read), trash (zset, read), consumers (zset), consumer (prefix of a hash), with_credit (zset),
--       heartbeats (zset, read), leader (hash, read)
-- ARGV  per queue: consumer, state, ms for which the record of a transient queue is to live ('0' = it is a lasting one)
-- Returns per queue: known (0 = it is not on the list any more and has to join again), ms until a consumer that has something alone may
-- be dead (-1 = all of these were heard), why the queue is paused ('' = it is not), until when (ms since the epoch, 0 = for good), how
-- many consumers the queue has, id of its record ('' = it has none), 1 = it has no messages and nothing to clear away, 1 = nothing was
-- ever published to it and the record lives as long as wanted, and why this could not be done ('' = it was): a key of another type, or
-- a field that is no number, is the matter of its own queue.
-- Bound: the consumers that are given, and 6 others of each queue that may be dead. Of queues with rules, where the one that had the
--       queue is gone, a look at each of the queue's consumers.
-- @include now
-- @include consumers
local now = now_ms()
local reply = {}

local function record_of(keys)
  return redis.call('HMGET', keys.meta, 'id', 'ttl', 'published', 'restricted', 'active', 'exclusive', 'sac', 'prioritised', 'paused',
    'paused_until')
end

local function check(keys, id, state, life)
  local priority = redis.call('HGET', keys.consumer .. id, 'priority')
  local known = priority and redis.call('ZSCORE', keys.consumers, id) and 1 or 0
  local record, count = record_of(keys), redis.call('ZCARD', keys.consumers)
  if known == 1 then
    redis.call('HSET', keys.consumer .. id, 'state', state, 'heard', text(now))
    keep_listed(keys, id, record)
  end
  local next_death, removed = -1, false
  if count > known then
    next_death, removed = remove_some_dead(keys, now, id, { record[4], record[5], record[6] })
    if removed then record, count = record_of(keys), redis.call('ZCARD', keys.consumers) end
  end
  if known == 1 and priority ~= '0' and not record[8] then
    -- The record was lost meanwhile.
    update_consumers(keys, priority)
  elseif record[4] and not is_consistent(keys, { record[7], record[5], record[6] }) then
    update_consumers(keys)
  elseif record[4] then
    -- What an eviction took of the rules stands again.
    update_wakeup_target(keys)
  end
  local until_ms = tonumber(record[10] or 0)
  local paused = record[9] and (until_ms == 0 or until_ms > now)
  local empty = redis.call('EXISTS', keys.ready, keys.delayed, keys.index, keys.dlx_outbox, keys.dead, keys.trash) == 0
  -- For a consumer that is there: one that has just left ends the life. GT: a lasting queue of this name, or one that lives longer, keeps
  -- what it has.
  local unpublished = known == 1 and life ~= '0' and record[1] and not record[3]
    and (redis.call('PEXPIRE', keys.meta, life, 'GT') == 1 or redis.call('PTTL', keys.meta) >= tonumber(life))
  return {
    known, next_death, paused and record[9] or '', text(until_ms), count, record[1] or '', empty and 1 or 0, unpublished and 1 or 0, '',
  }
end

for i = 0, #KEYS / CONSUMER_KEYS - 1 do
  local fine, values = pcall(check, consumer_keys(i * CONSUMER_KEYS), unpack(ARGV, 3 * i + 1, 3 * i + 3))
  if not fine then values = { 1, -1, '', '0', 1, '', 0, 0, type(values) == 'table' and values.err or tostring(values) } end
  for _, value in ipairs(values) do reply[#reply + 1] = value end
end
return reply
