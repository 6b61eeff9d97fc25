-- @include message
-- @include release_capacity
-- @include text
-- @include log_event
-- @include groups
-- @include tracked_message

-- What the publisher of a tracked message is told by the reason of its death. Of the others, its consumer tells, or the process that
-- has waited for an answer.
local TOLD = { expired = 'expired', delivery_limit = 'rejected', retry_policy = 'rejected', cancelled = 'gone', maxlen = 'gone' }

-- Ends a message's life in its queue; the caller then takes it out of its place. It goes on to the dead-letter exchange
-- (`dlx_outbox`, which the sweeper's process empties), or into the queue's own store (`dead`), or away: a transient queue has no
-- store. `queue` has its keys by name, `record` is HMGET meta ttl dlx. Counts what it does.
-- From the field `died` on the message counts as dead: wherever a script that fails leaves it, the sweep or a claim finishes this.
local function dead_letter(queue, record, tag, score, reason, now)
  local hash = queue.message .. tag
  local err = error_of(hash, tag)
  -- One that is no number was written by somebody else: the queue counts as a lasting one, which keeps what dies.
  local ttl, exchange = tonumber(record[1]) and record[1], record[2]
  local size = is_bounded(tag) and redis.call('HEXISTS', hash, 'died') == 0 and size_of(hash)
  local track = TOLD[reason] and tracked_by(queue.meta, hash)
  local group = is_grouped(tag) and groups().group_of(hash)
  local function count_out()
    if group then groups().leave(queue.meta, tag, group) end
    tell_tracked(track, tag, TOLD[reason])
    if reason == 'expired' then redis.call('HINCRBY', queue.meta, 'expired', 1) end
    if size then release_capacity(queue.meta, 1, size, 'gone', now) end
  end
  if ttl and not exchange then
    redis.call('UNLINK', hash)
    redis.call('HINCRBY', queue.meta, 'discarded', 1)
    return count_out()
  end
  redis.call('HSET', hash, 'score', score, 'reason', reason, 'died', text(now))
  redis.call('HDEL', hash, 'owner', 'expires', 'ttl_ms', 'delay', 'task_expiry')
  local place = exchange and queue.dlx_outbox or queue.dead
  redis.call('ZADD', place, text(now), tag)
  if ttl then redis.pcall('PEXPIRE', place, ttl) end
  if exchange then redis.call('ZADD', queue.schedule_wakeup, 0, 'due') end
  redis.call('HINCRBY', queue.meta, 'dead_lettered', 1)
  count_out()
  log_event(queue.meta, tag, 'dead_lettered', { reason = reason, error = err })
end

-- Dead letters that one call removes at most, about 2 µs each.
local MOST_TRIMMED_DEAD = 500

-- Removes dead letters beyond the `most` youngest, and those that died before `before` (ms); `limit` at most (nil = MOST_TRIMMED_DEAD).
-- Returns how many.
local function trim_dead(queue, most, before, limit)
  limit = limit or MOST_TRIMMED_DEAD
  local evicted = redis.call('ZRANGEBYSCORE', queue.dead, '-inf', '(' .. text(before), 'LIMIT', 0, limit)
  if #evicted == 0 then
    local over = math.min(redis.call('ZCARD', queue.dead) - most, limit)
    if over <= 0 then return 0 end
    evicted = redis.call('ZRANGE', queue.dead, 0, over - 1)
  end
  for _, tag in ipairs(evicted) do
    redis.call('UNLINK', queue.message .. tag)
    log_event(queue.meta, tag, 'dropped', { reason = 'retention' })
  end
  redis.call('ZREM', queue.dead, unpack(evicted))
  redis.call('HINCRBY', queue.meta, 'dead_evicted', #evicted)
  return #evicted
end
