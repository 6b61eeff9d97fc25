-- @include text

-- A Celery task with `expires` is not ended by the broker: a worker that consumes its queue revokes it, and tells its result
-- backend. Its hash has `task_expiry`: 'ahead' as long as its field `expires` is the task's own, 'over' since it has expired. Then
-- `expires` is when the queue's `x-message-ttl` ends the message, and is missing in a queue without one.

-- Notes that the task has expired; `meta` is the key of its queue's record. Returns when the queue's TTL ends it (ms), or false.
local function mark_expired(meta, hash, now)
  local ttl = redis.call('HGET', meta, 'message_ttl')
  redis.call('HINCRBY', meta, 'expired', 1)
  if ttl then
    redis.call('HSET', hash, 'task_expiry', 'over', 'expires', text(now + ttl))
    return now + ttl
  end
  redis.call('HSET', hash, 'task_expiry', 'over')
  redis.call('HDEL', hash, 'expires')
  return false
end
