#!lua flags=allow-oom
-- One pass over one queue or more: promotes what is due, expires what is overdue, recovers what nobody holds any more, bounds
-- the dead letters, empties the trash, rings again.
-- KEYS  per queue: queue (zset), delayed (zset), messages_index (zset), message (prefix of a hash), bell (zset), meta (hash),
--       timer (zset), expiry (zset), dying (zset), dead (zset), trash (zset)
--       then, unless expired tasks shall only die: expired (zset), expired task (prefix of a hash), bell of these (zset)
-- ARGV  1 sweeper  2 lease (ms)  3 interval to the next pass at the latest (ms)  4 entries a queue at most
--       5 take over (0/1): sweep even where another sweeper holds the lease  6 grace (ms): a gap since the last pass longer
--       than ARGV 7, or one in which the server was started, is an outage, and recovery waits this long after it
--       7 longest ordinary gap (ms)
--       8 delivery limit of queues without their own (-1 = none)  9 how many dead letters a queue keeps at most
--       10 for how long (ms)
-- Returns per queue: ms until the next pass (0 = at once, more is due), was it swept (0 = another has the lease), promoted,
-- recovered, how many of these died at the delivery limit, expired, how many messages were dropped for want of a store, waiting for the dead-letter exchange, old dead letters removed,
-- events that a registered reader has not read and that the hard bound took, events that were not written for want of memory, id of
-- the queue's record ('' = it has none);
-- then the first messages that died at the delivery limit, as put_back.lua has them
-- @include now
-- @include uptime
-- @include places
-- @include put_back
-- @include lifetime
-- @include trash
-- @include trim_events
-- @include expired

local now = now_ms()
local lease, interval, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local take_over = ARGV[5] == '1'
local grace, longest_gap = tonumber(ARGV[6]), tonumber(ARGV[7])

-- A restart takes longer than this (ms): passes that follow sooner do not ask.
local SHORTEST_OUTAGE = 10

-- Tells whether holders may have been unable to send a heartbeat since the last pass: nobody swept for long, the clock went back, or
-- the server was started meanwhile. Several short outages in a row leave them as little time as a long one.
local function was_away(swept)
  local gap = now - swept
  if gap > longest_gap or gap < 0 then return true end
  if gap < SHORTEST_OUTAGE then return false end
  local up = up_for_ms()
  return up and up <= gap
end

local outbox = #KEYS % PLACES == OUTBOX and outbox_of(#KEYS - OUTBOX)

-- Ends a message that expired; the caller has taken it out of its place.
local function end_expired(queue, rules, tag, score)
  if outbox then note_expired(outbox, queue.message .. tag, tag, now) end
  die(queue, rules, tag, score, 'expired', now)
end

local function due_in(key)
  return redis.call('ZRANGEBYSCORE', key, '-inf', text(now), 'LIMIT', 0, limit)
end

-- Returns how many were due, and how many of them had expired: in their queue when a claim met them, or before their eta.
local function promote(queue, rules)
  local due = due_in(queue.delayed)
  local entries, expiries, late = {}, {}, {}
  for _, tag in ipairs(due) do
    local hash = queue.message .. tag
    local fields = redis.call('HMGET', hash, 'score', 'lives', 'expires')
    if fields[1] and fields[3] and tonumber(fields[3]) <= now then
      late[#late + 1] = { tag, fields[1] }
    elseif fields[1] then
      entries[#entries + 1] = fields[1]
      entries[#entries + 1] = tag
      redis.call('HDEL', hash, 'score')
      local expires = expiry_of(tonumber(fields[2]), tonumber(fields[3]), now)
      if expires then
        expiries[#expiries + 1] = text(expires)
        expiries[#expiries + 1] = tag
        redis.call('HSET', hash, 'expires', text(expires))
        redis.call('HDEL', hash, 'lives')
      end
      tell(queue.meta, tag, 'promoted', {})
    else
      tell(queue.meta, tag, 'vanished', {})
    end
  end
  if #due > 0 then redis.call('ZREM', queue.delayed, unpack(due)) end
  if #entries > 0 then redis.call('ZADD', queue.ready, unpack(entries)) end
  if #expiries > 0 then redis.call('ZADD', queue.expiry, unpack(expiries)) end
  for _, message in ipairs(late) do end_expired(queue, rules, message[1], message[2]) end
  return #due, #late
end

-- Returns how many entries it looked at, and how many of them were ready messages.
local function expire(queue, rules)
  local due = due_in(queue.expiry)
  local expired = 0
  for _, tag in ipairs(due) do
    local score = redis.call('ZSCORE', queue.ready, tag)
    if score then
      redis.call('ZREM', queue.ready, tag)
      -- A hash that vanished (flush, eviction) leaves nothing to keep.
      if redis.call('EXISTS', queue.message .. tag) == 1 then
        end_expired(queue, rules, tag, score)
      else
        tell(queue.meta, tag, 'vanished', {})
      end
      expired = expired + 1
    end
  end
  if #due > 0 then redis.call('ZREM', queue.expiry, unpack(due)) end
  return #due, expired
end

-- Returns how many were overdue, and how many of them died at the delivery limit.
local function recover(queue, rules)
  local overdue = due_in(queue.index)
  local died = 0
  if #overdue > 0 then redis.call('ZREM', queue.index, unpack(overdue)) end
  for _, tag in ipairs(overdue) do
    local fields = redis.call('HMGET', queue.message .. tag, 'score', 'expires')
    if not fields[1] then
      tell(queue.meta, tag, 'vanished', {})
    elseif put_back_lost(queue, rules, ARGV[8], tag, fields[1], fields[2], now) == 'dead' then
      died = died + 1
    end
  end
  return #overdue, died
end

-- What a claim found expired has no place yet where its queue has no dead-letter exchange. Returns how many wait for one.
local function sort_dying(queue, rules)
  if rules[2] then return redis.call('ZCARD', queue.dying) end
  local popped = redis.call('ZPOPMIN', queue.dying, limit)
  for i = 1, #popped, 2 do
    if rules[1] then
      redis.call('UNLINK', queue.message .. popped[i])
      redis.call('HINCRBY', queue.meta, 'dropped', 1)
    else
      redis.call('ZADD', queue.dead, popped[i + 1], popped[i])
    end
  end
  return 0
end

local function first_score(key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2])
end

local reply = {}
local function answer(wait, ...)
  for _, number in ipairs({ math.max(0, math.ceil(wait)), ... }) do
    reply[#reply + 1] = number
  end
end

local function sweep(queue)
  if redis.call('EXISTS', queue.ready, queue.delayed, queue.index, queue.dying, queue.dead, queue.trash) == 0 then
    redis.call('DEL', queue.expiry)
    return answer(interval, 0, 0, 0, 0, 0, 0, 0, 0, trim_events(queue.meta))
  end
  local record = redis.call('HMGET', queue.meta, 'sweeper', 'lease', 'swept', 'grace', 'id', 'bell')
  if not take_over and record[1] and record[1] ~= ARGV[1] and tonumber(record[2] or 0) > now then
    return answer(record[2] - now + 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
  end
  local grace_until = tonumber(record[4] or 0)
  local swept = tonumber(record[3] or 0)
  -- Living workers get the time to send a heartbeat first. Of a queue that was never swept the time before is unknown.
  if redis.call('EXISTS', queue.index) == 1 and (swept == 0 or was_away(swept)) then
    grace_until = now + grace
  end
  local rules = redis.call('HMGET', queue.meta, unpack(FAILURE_RULES))
  local dropped_before = tonumber(redis.call('HGET', queue.meta, 'dropped') or 0)
  local promoted, late = promote(queue, rules)
  local recovered, died = 0, 0
  if grace_until <= now then recovered, died = recover(queue, rules) end
  local looked_at, expired = expire(queue, rules)
  local dying = sort_dying(queue, rules)
  local evicted = trim_dead(queue, tonumber(ARGV[9]), now - ARGV[10])
  local trashed = empty_trash(queue.trash, queue.message, queue.meta, limit, now, '')
  local wait = interval
  if math.max(promoted, recovered, looked_at, evicted, trashed) == limit then
    wait = 0
  else
    for _, key in ipairs({ queue.delayed, queue.expiry }) do
      local due = first_score(key)
      if due then wait = math.min(wait, due - now) end
    end
    local due = first_score(queue.index)
    if due then wait = math.min(wait, math.max(due, grace_until) - now) end
  end
  -- What a deleted queue has left in the trash must not bring its record back.
  if record[5] then
    redis.call('HSET', queue.meta, 'sweeper', ARGV[1], 'lease', text(now + math.max(lease, wait)), 'swept', text(now),
      'next', text(now + wait), 'grace', text(grace_until))
  end
  if redis.call('EXISTS', queue.ready) == 1 then redis.call('ZADD', record[6] or queue.bell, 0, 'work') end
  local dropped = tonumber(redis.call('HGET', queue.meta, 'dropped') or 0) - dropped_before
  answer(wait, 1, promoted, recovered, died, expired + late, dropped, dying, evicted, trim_events(queue.meta))
end

for base = 0, #KEYS - PLACES, PLACES do
  local queue = places(base)
  sweep(queue)
  reply[#reply + 1] = redis.call('HGET', queue.meta, 'id') or ''
end
for _, part in ipairs(deaths) do reply[#reply + 1] = part end
return reply
