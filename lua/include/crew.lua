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

-- How many lives a consumer's record outlasts its last sign of life: by then somebody has found it dead, or nobody is left.
local RECORD_LIVES = 10

-- Notes that a consumer is alive for `life` ms more.
local function alive(crew, id, life, now)
  redis.call('ZADD', crew.consumers, text(now + life), id)
  redis.call('PEXPIRE', crew.consumers, life)
  redis.call('PEXPIRE', crew.consumer .. id, RECORD_LIVES * life)
end

-- Takes a consumer off the list.
local function forget(crew, id)
  redis.call('ZREM', crew.consumers, id)
  redis.call('DEL', crew.consumer .. id)
end

-- Takes consumers off the list that gave no sign of life in time. Returns how many.
local function bury(crew, now)
  local dead = redis.call('ZRANGEBYSCORE', crew.consumers, '-inf', text(now), 'LIMIT', 0, 100)
  for _, id in ipairs(dead) do forget(crew, id) end
  return #dead
end
