#!lua flags=allow-oom
-- Gives a message that no consumer has yet, ready or delayed, another time, or another priority.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset, read)  4 message (prefix of a hash)  5 wakeup (zset)
--       6 meta (hash)  7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset, read)  10 dead (zset, read)
--       11 trash (zset, read)
-- ARGV  1 tag  2 eta (ms since the epoch, '+ms' from now, 0 = now; '' = its time stays)  [3 rank  4 priority]
-- Returns 1, or 0 where it does not wait.
-- Bound: a fixed number of commands.
-- @include now
-- @include state_keys
-- @include return_to_queue
-- @include expiry
-- @include damaged_message
-- @include remove_waiting
-- @include enqueue
-- @include notify
local queue, tag = state_keys(0), ARGV[1]
local hash = queue.message .. tag

local now = now_ms()

-- Makes the message ready, or leaves it to its group, which it returns where that holds it.
local function make_ready(score, expires, ttl)
  local group = is_grouped(tag) and groups().group_of(hash)
  local is_ready = redis.call('ZSCORE', queue.ready, tag)
  if not group or (is_ready and not group.group) then
    return_to_queue(queue, tag, score, expires, ttl)
    return false
  end
  -- It gets another place in its group: where that holds it already, and where it was the next one.
  if is_ready then redis.call('ZREM', queue.ready, tag) end
  groups().leave(queue.meta, tag, not redis.call('ZSCORE', queue.delayed, tag) and group)
  local held = groups().enter(queue.meta, tag, group, score, false)
  list_expiry(queue, tag, expires, ttl)
  -- A message that waited for its limiter asks it again.
  if (group.limiter or is_ready) and not held then notify(queue.wakeup, queue.meta) end
  return held and group
end

local function reschedule()
  local score, due = find_waiting(queue, tag)
  -- A place in the queue that no message gets, written by somebody else, tells no priority.
  if not score or not (due or is_whole(score)) then return 0 end
  local record = redis.call('HMGET', queue.meta, 'ttl', 'ageing', 'newest')
  local ttl = record[1]
  local delay = string.sub(ARGV[2], 1, 1) == '+' and tonumber(ARGV[2])
  local eta = delay and due_after(delay) or tonumber(ARGV[2])
  -- Among its priority it stands as one that was published for that time.
  local fields = redis.call('HMGET', hash, 'ttl_ms', 'expires', 'rank', 'task_expiry')
  local expires, ttl_ms, rank = whole(fields[2]), whole(fields[1]), rank_of(whole(score), fields[3])
  local time = newest_of(record[3], now)
  score = text(rank * level_of(record[2]) + math.max(eta, time))
  if eta <= now then redis.call('HSET', queue.meta, 'newest', time) end
  if eta > now then
    if delay then
      redis.call('HSET', hash, 'score', score, 'delay', text(delay))
    else
      redis.call('HSET', hash, 'score', score)
      redis.call('HDEL', hash, 'delay')
    end
    -- One that expires before its time ends then, as one that was published so.
    redis.call('ZADD', queue.delayed, text(math.min(expires or eta, eta)), tag)
    redis.call('ZADD', queue.schedule_wakeup, 0, 'due')
    if not due then remove_waiting(queue, tag, due) end
    log_event(queue.meta, tag, 'delayed', { reason = 'rescheduled', delay = text(delay or eta - now) })
  elseif not due then
    make_ready(score, expires and text(expires), ttl)
  else
    local ends = expiry_of(ttl_ms, expires, now)
    local holds = make_ready(score, ends and text(ends), ttl)
    if ends then redis.call('HSET', hash, 'expires', text(ends)) end
    if fields[4] == 'ahead' and ends ~= expires then redis.call('HDEL', hash, 'task_expiry') end
    redis.call('HDEL', hash, 'score', 'delay', 'ttl_ms')
    redis.call('ZREM', queue.delayed, tag)
    if holds then groups().go_on(queue.meta, holds) end
    if redis.call('HEXISTS', queue.meta, 'quiet') == 0 then notify(queue.wakeup, queue.meta) end
    log_event(queue.meta, tag, 'promoted', { reason = 'rescheduled' })
  end
  if ttl then
    for _, key in ipairs({ queue.ready, queue.delayed, queue.expiry, queue.schedule_wakeup }) do redis.call('PEXPIRE', key, ttl) end
  end
  return 1
end

-- Its new place has the same time, so it stands where it would if it had been published with that priority.
local function prioritize()
  local score, due = find_waiting(queue, tag)
  if not score or not (due or is_whole(score)) then return 0 end
  local fields = redis.call('HMGET', hash, 'rank', 'task_expiry')
  local level = level_of(redis.call('HGET', queue.meta, 'ageing'))
  local rank = rank_of(whole(score), fields[1])
  -- Of an expired task, which stands at the head of its queue for its worker, the place tells no priority, and stays.
  if fields[2] ~= 'over' then
    score = text(whole(score) + (tonumber(ARGV[3]) - rank) * level)
    if due then
      redis.call('HSET', hash, 'score', score)
    elseif redis.call('ZADD', queue.ready, 'XX', 'CH', score, tag) == 0 and is_grouped(tag) then
      -- Its group holds it, unless the score is the old one.
      if not redis.call('ZSCORE', queue.ready, tag) then make_ready(score, false, false) end
    elseif is_grouped(tag) then
      groups().return_to_group(queue.meta, tag)
    end
  end
  if fields[1] then redis.call('HSET', hash, 'rank', ARGV[3]) end
  redis.call('HSET', hash, 'priority', ARGV[4])
  return 1
end

local done = contained(queue, tag, now, ARGV[3] and prioritize or reschedule)
return done == 'damaged' and 0 or done
