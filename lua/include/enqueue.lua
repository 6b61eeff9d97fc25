-- @include now
-- @include tag
-- @include ageing
-- @include expiry
-- @include release_capacity
-- @include log_event
-- @include groups
-- @include names_limiter

-- KEYS of its own  task_index (prefix of a string)
-- The fields of a queue's record that an enqueue reads. One that is no number where it should be holds up no message.
local RECORD = { 'id', 'ttl', 'next', 'message_ttl', 'limited', 'event_log', 'wakeup', 'quiet', 'ageing', 'published', 'newest', 'groups' }

-- Notifies a sweeper that does not know of what is due at `due`: a `next` in the past belongs to one that is gone.
local function notify_sweeper(schedule_wakeup, ttl, next_due, due, now)
  next_due = tonumber(next_due) or 0
  if next_due >= now and due >= next_due then return end
  redis.call('ZADD', schedule_wakeup, 0, 'due')
  if ttl then redis.pcall('PEXPIRE', schedule_wakeup, ttl) end
end

-- When a delay is over that begins now, in ms since the epoch: never early, so the millisecond that has begun does not count.
local function due_after(delay)
  local now, us = now_ms_and_us()
  return now + delay + (delay > 0 and string.sub(us, -3) ~= '000' and 1 or 0)
end

-- The fields of a message's hash that its deliveries and its death have left, but for the number of its claims.
local function fields_of_deliveries()
  return 'owner', 'failed', 'begun', 'unbegun', 'requeues', 'seen', 'retried', 'reason', 'died', 'error', 'erred'
end

-- The fields of a message's hash that say who may hold it back.
local function fields_of_holders(holders)
  local fields = holders.group and { 'group', holders.group } or {}
  if holders.limiter then fields[#fields + 1], fields[#fields + 2] = 'limiter', holders.limiter end
  return fields
end

-- Gives the message its tag and its place: ready, or delayed until `eta` (ms since the epoch; '+ms' counts from now). Returns
-- the tag.
-- `record` is HMGET meta of RECORD, read anew for each message; `record.description` is what the event `published` says of the
-- message, `record.ready_at` since when it counts as ready, in place of now. `staged` is false, or the key of a hash that already holds
-- the body, or a whole message of another queue: its RENAME is the moment from which on the message is here.
-- `expiry_text` is as publishers send it. `tag` is false, or a tag that the message has already: its event is left to the caller.
local function enqueue(meta, ready, delayed, message, wakeup, schedule_wakeup, record, payload, rank, eta, staged, expiry,
  expiry_text, tag)
  local now = now_ms()
  local delay = string.sub(eta, 1, 1) == '+' and tonumber(eta)
  eta = delay and due_after(delay) or tonumber(eta)
  local published, time = tonumber(record[10] or 0) + 1, newest_of(record[11], now)
  redis.call('HSET', meta, 'published', published, 'newest', time)
  local log = not tag and record[6] and log_of(meta, record[6])
  local logged = log and is_sampled(published, log.permille)
  local envelope, kept = envelope_in(payload), tag
  local holders = (record[12] or names_limiter(envelope)) and groups().holders_in(envelope, record[12])
  tag = tag or new_tag(time, published, mark_of(record[5], logged, holders), record[1])
  holders = is_grouped(tag) and holders
  local hash = message .. tag
  local ttl, level = record[2], level_of(record[9])
  local ttl_ms, expires, is_task = false, false, false
  if expiry_text ~= '' or record[4] then ttl_ms, expires, is_task = parse_expiry(expiry_text, record[4], now) end
  -- One that expires before its time ends then.
  local due = expires and math.min(expires, eta) or eta
  local delayed_until, held = eta > now and text(due), false
  local fields = holders and fields_of_holders(holders) or {}
  -- The place first, then the hash: a tag without a message is dropped, a message without a place would stay for ever.
  if delayed_until then
    redis.call('ZADD', delayed, delayed_until, tag)
  elseif holders then
    held = groups().enter(meta, tag, holders, rank * level + (record.ready_at or time), true)
  else
    redis.call('ZADD', ready, text(rank * level + (record.ready_at or time)), tag)
  end
  if staged then
    local moved = redis.call('HEXISTS', staged, 'payload') == 1
    if not moved then redis.call('HSET', staged, 'payload', payload) end
    if holders then redis.call('HSET', staged, unpack(fields)) end
    redis.call('RENAME', staged, hash)
    redis.call('PERSIST', hash)
    if moved then
      -- A field that is not named again is one of the others.
      redis.call('HDEL', hash, 'expires', 'ttl_ms', 'rank', 'task_expiry', holders and holders.group and 'rank' or 'group',
        holders and holders.limiter and 'rank' or 'limiter', fields_of_deliveries())
      -- Under the same tag, a number that came again would be that of an old delivery.
      if not kept then redis.call('HDEL', hash, 'claim') end
      if not delayed_until then redis.call('HDEL', hash, 'score', 'delay') end
    end
  end
  if delayed_until then
    local score = text(rank * level + math.max(eta, time))
    if delay then
      redis.call('HSET', hash, 'payload', payload, 'score', score, 'delay', text(delay), unpack(fields))
    else
      redis.call('HSET', hash, 'payload', payload, 'score', score, unpack(fields))
    end
    if ttl_ms then redis.call('HSET', hash, 'ttl_ms', text(ttl_ms)) end
    if expires then redis.call('HSET', hash, 'expires', text(expires)) end
    if is_task then redis.call('HSET', hash, 'task_expiry', 'ahead') end
    if ttl then redis.pcall('PEXPIRE', delayed, ttl) end
    notify_sweeper(schedule_wakeup, ttl, record[3], due, now)
  else
    -- No consumer may take it now (paused, limits): who lifts that notifies.
    redis.call('HSET', hash, 'payload', payload, unpack(fields))
    if not record[8] and not held then redis.call('ZADD', record[7] or wakeup, 0, 'work') end
    local own = expires
    expires = expiry_of(ttl_ms, expires, now)
    if expires then
      redis.call('HSET', hash, 'expires', text(expires))
      if is_task and expires == own then redis.call('HSET', hash, 'task_expiry', 'ahead') end
      redis.call('ZADD', expiry, text(expires), tag)
      if ttl then redis.pcall('PEXPIRE', expiry, ttl) end
      notify_sweeper(schedule_wakeup, ttl, record[3], expires, now)
    end
    if ttl then
      redis.pcall('PEXPIRE', ready, ttl)
      redis.pcall('PEXPIRE', record[7] or wakeup, ttl)
    end
  end
  -- The score of a queue with ageing does not tell the priority.
  if record[9] then redis.call('HSET', hash, 'rank', rank) end
  if held and not kept then groups().go_on(meta, holders) end
  if ttl then redis.pcall('PEXPIRE', hash, ttl) end
  -- One that keeps the tag of a time without limits is not counted out either.
  if record[5] and is_bounded(tag) and limits_bytes(record[5]) then redis.call('HINCRBY', meta, 'bytes', size_of(hash)) end
  if logged then log_published(meta, tag, record.description, payload, delay or eta - now) end
  return tag
end
