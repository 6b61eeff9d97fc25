-- @include text
-- @include state_keys
-- @include keep_ttl

-- The zset `consumers` is the only source of which consumers a queue has: consumer -> alive until (ms). What the record says
-- besides (`active`, `exclusive`, `prioritised`, `wakeup`), and who is in `with_credit`, follows from it: `update_consumers`
-- derives it anew after each change of the list, and a reader of one of them checks that the consumer is listed
-- (`is_consistent`, `first_with_credit`). The list of a lasting queue has no TTL: a consumer that is gone leaves by
-- `remove_consumer`, after any time without a look.

-- How many keys of a queue a script gets that deals with its consumers.
local CONSUMER_KEYS = STATE_KEYS + 3

-- The keys of one queue by name, the first of them being KEYS[base + 1]: QueueKeys.crew in keys.py.
local function consumer_keys(base)
  local keys = state_keys(base)
  base = base + STATE_KEYS
  keys.consumers, keys.consumer, keys.with_credit = KEYS[base + 1], KEYS[base + 2], KEYS[base + 3]
  return keys
end

-- Stands among those with credit, below all, as long as the queue has rules: a plain claim looks whether the key exists.
local NOBODY = ''

-- Milliseconds that a consumer has to answer a probe. A process that lost its connection tries again within a second.
local ANSWER_MS = 1200

-- How many consumers that may be dead this call still looks at, over all its queues; the next one goes on.
local consumers_left = 500

-- Notes that a consumer is alive for `timeout_ms` ms more.
local function touch_consumer(keys, id, timeout_ms, now)
  redis.call('ZADD', keys.consumers, text(now + timeout_ms), id)
  if redis.call('HDEL', keys.consumer .. id, 'probed') == 1 then
    -- It has answered: its process need not look once more.
    redis.call('DEL', keys.consumer .. id .. ':probe')
  end
  local queue = redis.call('HMGET', keys.meta, 'id', 'ttl')
  for _, key in ipairs({ keys.consumers, keys.consumer .. id }) do
    if queue[1] and not queue[2] then
      redis.call('PERSIST', key)
    else
      -- Goes with a transient queue; without a record it would never be cleared away.
      redis.call('PEXPIRE', key, math.max(tonumber(queue[2]) or 0, timeout_ms))
    end
  end
end

-- Returns the consumer of the highest priority that has credit, and that priority.
local function first_with_credit(keys)
  while true do
    local first = redis.call('ZREVRANGE', keys.with_credit, 0, 0, 'WITHSCORES')
    if not first[1] or first[1] == NOBODY then return nil end
    if redis.call('ZSCORE', keys.consumers, first[1]) then return first[1], first[2] end
    redis.call('ZREM', keys.with_credit, first[1])
  end
end

-- Says in the queue's record whether it has rules for its consumers, so that only `claim_restricted` may take from it, and which
-- wake-up wakes who is to be woken next: the active consumer's, or that of the highest priority with credit. Returns that
-- wake-up.
local function update_wakeup_target(keys)
  local record = redis.call('HMGET', keys.meta, 'restricted', 'sac', 'active', 'prioritised', 'paused', 'exclusive')
  if record[1] ~= 'declared' and (record[4] or record[5] or record[6]) then
    redis.call('HSET', keys.meta, 'restricted', 'now')
  elseif record[1] == 'now' then
    redis.call('HDEL', keys.meta, 'restricted', 'quiet')
    record[1] = false
  end
  if record[1] == 'declared' or record[4] or record[5] or record[6] then
    redis.call('ZADD', keys.with_credit, '-inf', NOBODY)
  else
    redis.call('DEL', keys.with_credit)
  end
  local wakeup = keys.wakeup
  if record[2] then
    if record[3] then wakeup = wakeup .. ':' .. record[3] end
  elseif record[4] then
    local _, priority = first_with_credit(keys)
    if priority and priority ~= '0' then wakeup = wakeup .. ':' .. priority end
  end
  if wakeup == keys.wakeup then
    redis.call('HDEL', keys.meta, 'wakeup')
  else
    redis.call('HSET', keys.meta, 'wakeup', wakeup)
  end
  return wakeup
end

-- Wakes who is to be woken next, if there is something to take.
local function notify_next(keys)
  local wakeup = update_wakeup_target(keys)
  if redis.call('EXISTS', keys.ready) == 1 then
    redis.call('ZADD', wakeup, 0, 'work')
    keep_ttl(redis.call('HGET', keys.meta, 'ttl'), wakeup)
  end
end

-- Whether the consumers that the record names are on the list. `record` is HMGET meta sac active exclusive.
local function is_consistent(keys, record)
  local function listed(id) return redis.call('ZSCORE', keys.consumers, id) end
  if record[3] and not listed(record[3]) then return false end
  if record[1] then return record[2] and listed(record[2]) end
  return true
end

-- Whether any consumer has a priority. The walk ends with the first.
local function any_priority(keys)
  for _, id in ipairs(redis.call('ZRANGE', keys.consumers, 0, -1)) do
    if tonumber(redis.call('HGET', keys.consumer .. id, 'priority') or 0) ~= 0 then return true end
  end
  return false
end

-- The consumer that becomes the active one: of those that have not been probed, that of the highest priority, the longest there.
local function next_active(keys)
  local best
  for _, id in ipairs(redis.call('ZRANGE', keys.consumers, 0, -1)) do
    local fields = redis.call('HMGET', keys.consumer .. id, 'priority', 'since', 'probed')
    local one = { id = id, probed = fields[3] and 1 or 0, priority = tonumber(fields[1]) or 0, since = tonumber(fields[2]) or 0 }
    if not best or one.probed < best.probed or (one.probed == best.probed and (one.priority > best.priority
        or (one.priority == best.priority and one.since < best.since))) then
      best = one
    end
  end
  return best
end

-- The first consumer with a priority: until they say otherwise, all wait for work.
local function begin_priorities(keys)
  redis.call('HSET', keys.meta, 'prioritised', 1)
  for _, id in ipairs(redis.call('ZRANGE', keys.consumers, 0, -1)) do
    redis.call('ZADD', keys.with_credit, redis.call('HGET', keys.consumer .. id, 'priority') or 0, id)
  end
end

-- Derives from the list what the record says of consumers, and wakes who is to be woken next. An active consumer that is gone
-- without having left is dead: the next one takes over what its session held. `joined` is the priority (text) of one that was just
-- listed, or nil. A queue without rules costs the same however many consumers it has.
local function update_consumers(keys, joined)
  local record = redis.call('HMGET', keys.meta, 'id', 'sac', 'active', 'exclusive', 'prioritised', 'takeover')
  if not record[1] then return end
  local function listed(id) return redis.call('ZSCORE', keys.consumers, id) end
  if not record[5] then
    if joined and tonumber(joined) ~= 0 then begin_priorities(keys) else redis.call('DEL', keys.with_credit) end
  elseif not any_priority(keys) then
    redis.call('HDEL', keys.meta, 'prioritised')
    redis.call('DEL', keys.with_credit)
  end
  if record[4] and not listed(record[4]) then redis.call('HDEL', keys.meta, 'exclusive') end
  if record[3] and not listed(record[3]) then
    redis.call('HDEL', keys.meta, 'active', 'takeover_at')
    local session = string.match(record[3], '^[^.]*')
    redis.call('HSET', keys.meta, 'takeover', record[6] and record[6] .. ' ' .. session or session)
    record[3] = false
  end
  local best = record[2] and not record[3] and next_active(keys)
  if best then
    redis.call('HSET', keys.meta, 'active', best.id)
    redis.call('HINCRBY', keys.meta, 'activations', 1)
    -- It has to hear of it, be there work or not.
    redis.call('ZADD', keys.wakeup .. ':' .. best.id, 0, 'active')
  end
  notify_next(keys)
end

-- Takes a consumer off the list, with its wake-ups; `update_consumers` has to follow, and notifies again for the others of its
-- priority.
local function remove_consumer(keys, id)
  local priority = redis.call('HGET', keys.consumer .. id, 'priority')
  redis.call('ZREM', keys.consumers, id)
  redis.call('ZREM', keys.with_credit, id)
  redis.call('DEL', keys.consumer .. id, keys.consumer .. id .. ':probe', keys.wakeup .. ':' .. id, keys.wakeup .. ':' .. (priority or '0'))
end

-- The clock went back: deadlines that were given before would last until it has caught up. No deadline is later than `timeout_ms`
-- and the time for an answer, so a later one is from before the step, and is cut. Dead consumers are then overdue as late as without
-- the step: the caller's heartbeat may have come a third of `timeout_ms` after it, and living consumers send theirs within the rest.
local function rebase_deadlines(keys, now, timeout_ms)
  local latest = '(' .. text(now + timeout_ms + ANSWER_MS)
  local ahead = redis.call('ZRANGEBYSCORE', keys.consumers, latest, '+inf', 'LIMIT', 0, consumers_left)
  consumers_left = consumers_left - #ahead
  for _, id in ipairs(ahead) do
    local heard = redis.call('HGET', keys.consumer .. id, 'heard')
    if not heard or tonumber(heard) > now then redis.call('ZADD', keys.consumers, text(now + math.floor(timeout_ms * 2 / 3)), id) end
  end
end

-- Takes consumers off the list that were not heard of in time. Each is probed first: whether the server could not hear (a stall,
-- an outage, a step of its clock), or a consumer is dead, shows within ANSWER_MS. `me` is alive, since it is calling.
local function remove_expired(keys, now, me)
  local gone = false
  local overdue = redis.call('ZRANGEBYSCORE', keys.consumers, '-inf', text(now), 'LIMIT', 0, consumers_left)
  consumers_left = consumers_left - #overdue
  for _, id in ipairs(overdue) do
    if id == me then
      -- Its heartbeat says for how long.
    elseif redis.call('HGET', keys.consumer .. id, 'probed') then
      remove_consumer(keys, id)
      gone = true
    else
      redis.call('HSET', keys.consumer .. id, 'probed', 1)
      redis.call('ZADD', keys.consumers, text(now + ANSWER_MS), id)
      -- The maintenance thread of its process listens.
      redis.call('ZADD', keys.consumer .. id .. ':probe', 0, 'probe')
      redis.call('PEXPIRE', keys.consumer .. id .. ':probe', ANSWER_MS)
    end
  end
  if gone then update_consumers(keys) end
end
