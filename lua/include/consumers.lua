-- @include text
-- @include state_keys
-- @include keep_ttl

-- The zset `consumers` is the only source of which consumers a queue has: consumer -> alive until (ms). What the record says
-- besides (`active`, `exclusive`, `prioritised`, `bell`), and who is in `interested`, follows from it: `review` derives it anew
-- after each change of the list, and whoever reads one of them checks that the consumer is listed (`agrees`, `first_in_line`).
-- The list of a lasting queue has no TTL: a consumer that is gone leaves by `forget`, however long nobody looked.

-- How many keys of a queue a script gets that deals with its consumers.
local CREW = PLACES + 3

-- The keys of one queue by name, the first of them being KEYS[base + 1]: QueueKeys.crew in keys.py.
local function crew_of(base)
  local crew = places(base)
  base = base + PLACES
  crew.consumers, crew.consumer, crew.interested = KEYS[base + 1], KEYS[base + 2], KEYS[base + 3]
  return crew
end

-- Stands among the interested, below everybody, as long as the queue has rules: a plain claim looks whether the key exists.
local NOBODY = ''

-- Milliseconds that a consumer has to answer a probe. A process that lost its connection tries again within a second.
local ANSWER_MS = 1200

-- Notes that a consumer is alive for `life` ms more.
local function alive(crew, id, life, now)
  redis.call('ZADD', crew.consumers, text(now + life), id)
  if redis.call('HDEL', crew.consumer .. id, 'probed') == 1 then
    -- It has answered: its process need not look once more.
    redis.call('DEL', crew.consumer .. id .. ':probe')
  end
  local queue = redis.call('HMGET', crew.meta, 'id', 'ttl')
  for _, key in ipairs({ crew.consumers, crew.consumer .. id }) do
    if queue[1] and not queue[2] then
      redis.call('PERSIST', key)
    else
      -- Goes with a transient queue; without a record nobody would clear it away.
      redis.call('PEXPIRE', key, math.max(tonumber(queue[2]) or 0, life))
    end
  end
end

-- Returns the consumer of the highest priority that has credit, and that priority.
local function first_in_line(crew)
  while true do
    local first = redis.call('ZREVRANGE', crew.interested, 0, 0, 'WITHSCORES')
    if not first[1] or first[1] == NOBODY then return nil end
    if redis.call('ZSCORE', crew.consumers, first[1]) then return first[1], first[2] end
    redis.call('ZREM', crew.interested, first[1])
  end
end

-- Says in the queue's record whether it has rules for its consumers, so that only `claim_restricted` may take from it, and which
-- bell wakes who is to be woken next: the active consumer's, or that of the highest priority with credit. Returns that bell.
local function direct(crew)
  local record = redis.call('HMGET', crew.meta, 'managed', 'sac', 'active', 'prioritised', 'paused', 'exclusive')
  if record[1] ~= 'declared' and (record[4] or record[5] or record[6]) then
    redis.call('HSET', crew.meta, 'managed', 'now')
  elseif record[1] == 'now' then
    redis.call('HDEL', crew.meta, 'managed', 'quiet')
    record[1] = false
  end
  if record[1] == 'declared' or record[4] or record[5] or record[6] then
    redis.call('ZADD', crew.interested, '-inf', NOBODY)
  else
    redis.call('DEL', crew.interested)
  end
  local bell = crew.bell
  if record[2] then
    if record[3] then bell = bell .. ':' .. record[3] end
  elseif record[4] then
    local _, priority = first_in_line(crew)
    if priority and priority ~= '0' then bell = bell .. ':' .. priority end
  end
  if bell == crew.bell then
    redis.call('HDEL', crew.meta, 'bell')
  else
    redis.call('HSET', crew.meta, 'bell', bell)
  end
  return bell
end

-- Wakes who is to be woken next, if there is something to take.
local function wake(crew)
  local bell = direct(crew)
  if redis.call('EXISTS', crew.ready) == 1 then
    redis.call('ZADD', bell, 0, 'work')
    keep_ttl(redis.call('HGET', crew.meta, 'ttl'), bell)
  end
end

-- Whether the consumers that the record names are on the list. `record` is HMGET meta sac active exclusive.
local function agrees(crew, record)
  local function listed(id) return redis.call('ZSCORE', crew.consumers, id) end
  if record[3] and not listed(record[3]) then return false end
  if record[1] then return record[2] and listed(record[2]) end
  return true
end

-- Derives from the list what the record says of consumers, and wakes who is to be woken next. An active consumer that is gone
-- without having left is dead: the next one takes over what its session held. The next one is, of those that have not been
-- probed, that of the highest priority, the longest there.
local function review(crew)
  local record = redis.call('HMGET', crew.meta, 'id', 'sac', 'active', 'exclusive', 'prioritised', 'takeover')
  if not record[1] then return end
  local priorities, ranked, best = {}, false, nil
  for _, id in ipairs(redis.call('ZRANGE', crew.consumers, 0, -1)) do
    local fields = redis.call('HMGET', crew.consumer .. id, 'priority', 'since', 'probed')
    local one = { id = id, probed = fields[3] and 1 or 0, priority = tonumber(fields[1]) or 0, since = tonumber(fields[2]) or 0 }
    priorities[id] = one.priority
    ranked = ranked or one.priority ~= 0
    if not best or one.probed < best.probed or (one.probed == best.probed and (one.priority > best.priority
        or (one.priority == best.priority and one.since < best.since))) then
      best = one
    end
  end
  if not ranked then
    redis.call('HDEL', crew.meta, 'prioritised')
    redis.call('DEL', crew.interested)
  elseif not record[5] then
    redis.call('HSET', crew.meta, 'prioritised', 1)
    -- Until they say otherwise, all wait for work.
    for id, priority in pairs(priorities) do redis.call('ZADD', crew.interested, priority, id) end
  else
    for _, id in ipairs(redis.call('ZRANGE', crew.interested, 0, -1)) do
      if not priorities[id] then redis.call('ZREM', crew.interested, id) end
    end
  end
  if record[4] and not priorities[record[4]] then redis.call('HDEL', crew.meta, 'exclusive') end
  if record[3] and not priorities[record[3]] then
    redis.call('HDEL', crew.meta, 'active')
    local session = string.match(record[3], '^[^.]*')
    redis.call('HSET', crew.meta, 'takeover', record[6] and record[6] .. ' ' .. session or session)
    record[3] = false
  end
  if record[2] and not record[3] and best then
    redis.call('HSET', crew.meta, 'active', best.id)
    redis.call('HINCRBY', crew.meta, 'epoch', 1)
    -- It has to hear of it, be there work or not.
    redis.call('ZADD', crew.bell .. ':' .. best.id, 0, 'active')
  end
  wake(crew)
end

-- Takes a consumer off the list, with its bells; `review` has to follow, and rings again for the others of its priority.
local function forget(crew, id)
  local priority = redis.call('HGET', crew.consumer .. id, 'priority')
  redis.call('ZREM', crew.consumers, id)
  redis.call('ZREM', crew.interested, id)
  redis.call('DEL', crew.consumer .. id, crew.consumer .. id .. ':probe', crew.bell .. ':' .. id, crew.bell .. ':' .. (priority or '0'))
end

-- The clock went back: what consumers were given before would last until it has caught up. `life` is what the caller is given; who
-- is given more was not heard of in the future. The dead are overdue as late as without the step: the caller's heartbeat may have
-- come a third of `life` after the step, and the living send theirs within the rest.
local function rebase_deadlines(crew, now, life)
  local latest = '(' .. text(now + life + ANSWER_MS)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', crew.consumers, latest, '+inf', 'LIMIT', 0, 1000)) do
    local heard = redis.call('HGET', crew.consumer .. id, 'heard')
    if not heard or tonumber(heard) > now then redis.call('ZADD', crew.consumers, text(now + math.floor(life * 2 / 3)), id) end
  end
end

-- Takes consumers off the list that were not heard of in time. Each is probed first: whether the server could not hear (a stall,
-- an outage, a step of its clock), or a consumer is dead, shows within ANSWER_MS. `me` is alive, since it is calling.
local function bury(crew, now, me)
  local gone = false
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', crew.consumers, '-inf', text(now), 'LIMIT', 0, 1000)) do
    if id == me then
      -- Its heartbeat says for how long.
    elseif redis.call('HGET', crew.consumer .. id, 'probed') then
      forget(crew, id)
      gone = true
    else
      redis.call('HSET', crew.consumer .. id, 'probed', 1)
      redis.call('ZADD', crew.consumers, text(now + ANSWER_MS), id)
      -- The duties of its process listen.
      redis.call('ZADD', crew.consumer .. id .. ':probe', 0, 'probe')
      redis.call('PEXPIRE', crew.consumer .. id .. ':probe', ANSWER_MS)
    end
  end
  if gone then review(crew) end
end
