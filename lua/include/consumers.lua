-- @include text
-- @include state_keys
-- @include keep_ttl
-- @include living

-- The zset `consumers` is the only source of which consumers a queue has: consumer -> when it joined (ms). What the record says
-- besides (`active`, `exclusive`, `prioritised`, `wakeup`), and who is in `with_credit`, follows from it: `update_consumers`
-- derives it anew after each change of the list, and a reader of one of them checks that the consumer is listed
-- (`is_consistent`, `first_with_credit`). A consumer lives as long as its process does: those of a lost one are taken off the list by the
-- leader, those of a silent one by who looks.

-- How many keys of a queue a script gets that deals with its consumers.
local CONSUMER_KEYS = STATE_KEYS + 5

-- The keys of one queue by name, the first of them being KEYS[base + 1]: QueueKeys.crew in keys.py.
local function consumer_keys(base)
  local keys = state_keys(base)
  base = base + STATE_KEYS
  keys.consumers, keys.consumer, keys.with_credit = KEYS[base + 1], KEYS[base + 2], KEYS[base + 3]
  keys.heartbeats, keys.leader = KEYS[base + 4], KEYS[base + 5]
  return keys
end

-- Stands among those with credit, below all, as long as the queue has rules: a plain claim looks whether the key exists.
local NOBODY = ''

-- For how long the list stays of a queue that has no record (ms).
local UNDECLARED_MS = 60000

-- Keeps the list, and the record of `id`, as long as the queue, whose `id` and `ttl` may be known.
local function keep_listed(keys, id, queue)
  queue = queue or redis.call('HMGET', keys.meta, 'id', 'ttl')
  for _, key in ipairs({ keys.consumers, keys.consumer .. id }) do
    if queue[1] and not queue[2] then
      redis.call('PERSIST', key)
    else
      -- Goes with a transient queue; without a record it would never be cleared away.
      redis.call('PEXPIRE', key, math.max(tonumber(queue[2]) or 0, UNDECLARED_MS))
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

-- Whether a consumer is dead, and in how many ms it will be if its heartbeat, which is overdue, stays away; nil where that is not.
local function is_dead(keys, id, since, now, from)
  local fields = redis.call('HMGET', keys.consumer .. id, 'process', 'timeout')
  local at, timeout = dead_at(keys.heartbeats, fields[1], fields[2], since, now)
  at = math.max(at, from)
  return at <= now, at - timeout < now and at - now or nil
end

-- The consumer that becomes the active one: that of the highest priority, the longest there. A dead one only where none lives.
local function next_active(keys)
  local now = now_ms()
  local from = silence_counts_from(keys.heartbeats, keys.leader, now)
  local best, highest
  local listed = redis.call('ZRANGE', keys.consumers, 0, -1, 'WITHSCORES')
  for i = 1, #listed, 2 do
    local id = listed[i]
    local priority = tonumber(redis.call('HGET', keys.consumer .. id, 'priority')) or 0
    if (not best or priority > highest) and not (from and is_dead(keys, id, tonumber(listed[i + 1]), now, from)) then
      best, highest = id, priority
    end
  end
  return best or listed[1]
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
  local record = redis.call('HMGET', keys.meta, 'id', 'sac', 'active', 'exclusive', 'prioritised', 'takeover', 'expires', 'ttl')
  if not record[1] then return end
  -- While a transient queue is consumed its record lives longer (extend_queue_ttl.lua): now it is unused.
  local expires = record[7] or record[8]
  if expires and redis.call('EXISTS', keys.consumers) == 0 then redis.call('PEXPIRE', keys.meta, expires) end
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
    redis.call('HSET', keys.meta, 'active', best)
    redis.call('HINCRBY', keys.meta, 'activations', 1)
    -- It has to hear of it, be there work or not.
    redis.call('ZADD', keys.wakeup .. ':' .. best, 0, 'active')
  end
  notify_next(keys)
end

-- Takes a consumer off the list, with its wake-ups; `update_consumers` has to follow, and notifies again for the others of its
-- priority.
local function remove_consumer(keys, id)
  local priority = redis.call('HGET', keys.consumer .. id, 'priority')
  redis.call('ZREM', keys.consumers, id)
  redis.call('ZREM', keys.with_credit, id)
  redis.call('DEL', keys.consumer .. id, keys.wakeup .. ':' .. id, keys.wakeup .. ':' .. (priority or '0'))
end

-- How many consumers of a queue a call looks at besides those that have something alone: any of them. Each process looks every third of
-- the timeout, so a dead one is met with 19 of 20 looks of as many processes as there are consumers.
local SAMPLE = 3

-- Takes those of the consumers `ids` off the list that are dead; `update_consumers` has to follow where there are any. `joined` tells of
-- some of them when they joined. Returns whether there are, and in how many ms the next one will be if its heartbeat, which is overdue,
-- stays away; nil where all were heard.
local function remove_dead(keys, now, ids, joined)
  if #ids == 0 then return false end
  local from = silence_counts_from(keys.heartbeats, keys.leader, now)
  if not from then return false end
  local removed, next_death = false, nil
  for _, id in ipairs(ids) do
    local since = tonumber(joined and joined[id] or redis.call('ZSCORE', keys.consumers, id))
    if since then
      local dead, wait = is_dead(keys, id, since, now, from)
      if dead then
        remove_consumer(keys, id)
        removed = true
      elseif wait then
        next_death = math.min(next_death or math.huge, wait)
      end
    end
  end
  return removed, next_death
end

-- Those that have something alone in a queue, but for `me`. Only one with rules has any.
local function privileged(keys, me, rules)
  local found = {}
  if not rules[1] then return found end
  for _, id in ipairs({ rules[2] or '', rules[3] or '', (first_with_credit(keys)) or '' }) do
    if id ~= '' and id ~= me then found[#found + 1] = id end
  end
  return found
end

-- Removes dead ones among a few others than `me`, and brings the record up to date. `rules`: HMGET meta restricted active exclusive.
-- Returns in how many ms the next one that has something alone may be dead, -1 where all of these were heard; and whether any is removed.
local function remove_some_dead(keys, now, me, rules)
  local others, joined = {}, {}
  local sample = redis.call('ZRANDMEMBER', keys.consumers, SAMPLE, 'WITHSCORES')
  for i = 1, #sample, 2 do
    if sample[i] ~= me then
      others[#others + 1] = sample[i]
      joined[sample[i]] = sample[i + 1]
    end
  end
  local alone = privileged(keys, me, rules)
  local among_others = remove_dead(keys, now, others, joined)
  local removed, next_death = remove_dead(keys, now, alone)
  if removed or among_others then update_consumers(keys) end
  return next_death or -1, removed or among_others
end
