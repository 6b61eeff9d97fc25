-- @include text
-- @include places

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

-- How many lives a consumer's record outlasts its last sign of life: by then somebody has found it dead, or nobody is left.
local RECORD_LIVES = 10

-- Notes that a consumer is alive for `life` ms more.
local function alive(crew, id, life, now)
  redis.call('ZADD', crew.consumers, text(now + life), id)
  redis.call('PEXPIRE', crew.consumers, life)
  redis.call('PEXPIRE', crew.consumer .. id, RECORD_LIVES * life)
end

-- Says in the queue's record whether it has rules for its consumers, so that only `claim_managed` may take from it, and which
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
    local first = redis.call('ZREVRANGE', crew.interested, 0, 0, 'WITHSCORES')
    if first[1] ~= NOBODY and first[2] ~= '0' then bell = bell .. ':' .. first[2] end
  end
  if bell == crew.bell then
    redis.call('HDEL', crew.meta, 'bell')
  else
    redis.call('HSET', crew.meta, 'bell', bell)
  end
  return bell
end

-- Chooses the active consumer of a queue that has only one: of the highest priority, the longest there.
local function elect(crew)
  local best, priority, since
  for _, id in ipairs(redis.call('ZRANGE', crew.consumers, 0, -1)) do
    local fields = redis.call('HMGET', crew.consumer .. id, 'priority', 'since')
    local its_priority, its_since = tonumber(fields[1]) or 0, tonumber(fields[2]) or 0
    if not best or its_priority > priority or (its_priority == priority and its_since < since) then
      best, priority, since = id, its_priority, its_since
    end
  end
  if not best then return nil end
  redis.call('HSET', crew.meta, 'active', best)
  redis.call('HINCRBY', crew.meta, 'epoch', 1)
  -- It has to hear of it, be there work or not.
  redis.call('ZADD', crew.bell .. ':' .. best, 0, 'active')
  return best
end

-- Takes a consumer off the list, and passes on what it had alone. `died`: nobody settles what it holds.
local function forget(crew, id, died)
  local priority = redis.call('HGET', crew.consumer .. id, 'priority')
  local listed = redis.call('ZREM', crew.consumers, id)
  redis.call('ZREM', crew.interested, id)
  redis.call('DEL', crew.consumer .. id, crew.bell .. ':' .. id)
  local record = redis.call('HMGET', crew.meta, 'active', 'exclusive', 'prioritised')
  if record[1] == id then
    redis.call('HDEL', crew.meta, 'active')
    if died then redis.call('HSET', crew.meta, 'takeover', 1) end
    elect(crew)
  end
  if record[2] == id then redis.call('HDEL', crew.meta, 'exclusive') end
  if record[3] and listed == 1 then
    local left = tonumber(record[3])
    if priority and priority ~= '0' then left = redis.call('HINCRBY', crew.meta, 'prioritised', -1) end
    if left <= 0 or redis.call('EXISTS', crew.consumers) == 0 then
      redis.call('HDEL', crew.meta, 'prioritised')
      redis.call('DEL', crew.interested)
    end
  end
end

-- Wakes who is to be woken next, if there is something to take.
local function wake(crew)
  local bell = direct(crew)
  if redis.call('EXISTS', crew.ready) == 1 then redis.call('ZADD', bell, 0, 'work') end
end

-- Takes consumers off the list that gave no sign of life in time. Returns how many.
local function bury(crew, now)
  local dead = redis.call('ZRANGEBYSCORE', crew.consumers, '-inf', text(now), 'LIMIT', 0, 100)
  for _, id in ipairs(dead) do forget(crew, id, true) end
  if #dead > 0 and redis.call('EXISTS', crew.meta) == 1 then wake(crew) end
  return #dead
end
