-- @include now
-- @include text

-- One priority level spans 10^13 ms, so that no age of a message ever crosses into the next level.
local LEVEL = 1e13

-- Gives the message its tag and its place: ready, or delayed until `eta` (ms since the epoch; '+ms' counts from now). Returns
-- the tag.
-- `record` is HMGET meta id ttl next. `staged` is false, or the key of a hash that already holds the body.
local function enqueue(meta, ready, delayed, message, bell, timer, record, payload, rank, eta, staged)
  local now = now_ms()
  eta = string.sub(eta, 1, 1) == '+' and now + tonumber(eta) or tonumber(eta)
  local published = redis.call('HINCRBY', meta, 'published', 1)
  local tag = string.format('%011x%08x.%s', now, published % 4294967296, record[1])
  local hash = message .. tag
  if staged then
    redis.call('RENAME', staged, hash)
    redis.call('PERSIST', hash)
  end
  local ttl = record[2]
  if eta > now then
    redis.call('HSET', hash, 'payload', payload, 'score', text(rank * LEVEL + eta))
    redis.call('ZADD', delayed, text(eta), tag)
    if ttl then redis.call('PEXPIRE', delayed, ttl) end
    -- A `next` in the past belongs to a sweeper that is gone.
    local next_due = tonumber(record[3] or 0)
    if next_due < now or eta < next_due then
      redis.call('ZADD', timer, 0, 'due')
      if ttl then redis.call('PEXPIRE', timer, ttl) end
    end
  else
    redis.call('HSET', hash, 'payload', payload)
    redis.call('ZADD', ready, text(rank * LEVEL + now), tag)
    redis.call('ZADD', bell, 0, 'work')
    if ttl then
      redis.call('PEXPIRE', ready, ttl)
      redis.call('PEXPIRE', bell, ttl)
    end
  end
  if ttl then redis.call('PEXPIRE', hash, ttl) end
  return tag
end
