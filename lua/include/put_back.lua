-- @include text
-- @include die
-- @include retry_delay

-- Makes a message ready again that was claimed or delayed, where it stood before; the caller has taken it out of its place.
-- `expires` is its expiry (ms) or false.
local function put_back(queue, tag, score, expires)
  redis.call('ZADD', queue.ready, score, tag)
  if expires then
    redis.call('ZADD', queue.expiry, expires, tag)
    -- The sweeper may not know of it: while the message was claimed, nothing was due.
    redis.call('ZADD', queue.timer, 0, 'due')
  end
end

-- What `put_back_failed` needs of a queue's record.
local FAILURE_RULES = { 'ttl', 'dlx', 'limit', 'retry' }

-- Puts back a message whose delivery failed: it counts, and at the limit the message dies, or where the retry policy is at its end.
-- `rules` is HMGET meta of FAILURE_RULES, `limit` holds for queues without one of their own (-1 = none). With a policy the
-- message waits in `delayed`. Returns 'ready', 'delayed', 'dead'.
-- `event` and `reason` are what its log says where it is ready again.
local function put_back_failed(queue, rules, limit, tag, score, expires, now, event, reason)
  local hash = queue.message .. tag
  local failures = redis.call('HINCRBY', hash, 'failed', 1)
  limit = tonumber(rules[3] or limit)
  local delay = rules[4] and retry_delay(rules[4], failures, tag)
  if (limit >= 0 and failures >= limit) or delay == false and rules[4] then
    die(queue, rules, tag, score, 'delivery_limit', now)
    return 'dead'
  end
  redis.call('HDEL', hash, 'by')
  if not rules[4] then
    redis.call('HDEL', hash, 'score')
    put_back(queue, tag, score, expires)
    tell(queue.meta, tag, event, { reason = reason })
    return 'ready'
  end
  redis.call('HSET', hash, 'score', score)
  redis.call('ZADD', queue.delayed, text(now + delay), tag)
  redis.call('ZADD', queue.timer, 0, 'due')
  tell(queue.meta, tag, 'retried', { reason = reason, delay = text(delay) })
  return 'delayed'
end

-- Puts back a message whose consumer was lost. A message's first failure counts in any case: its consumer does not tell how far it
-- had come. From then on the consumer says when it begins (`begin.lua`), and a loss before that is no failure of the message.
-- Returns as `put_back_failed`.
local function put_back_lost(queue, rules, limit, tag, score, expires, now)
  local hash = queue.message .. tag
  local fields = redis.call('HMGET', hash, 'failed', 'claim', 'begun')
  if tonumber(fields[1] or 0) == 0 or fields[3] == fields[2] then
    return put_back_failed(queue, rules, limit, tag, score, expires, now, 'recovered', 'heartbeat_lost')
  end
  put_back(queue, tag, score, expires)
  redis.call('HDEL', hash, 'by', 'score')
  tell(queue.meta, tag, 'recovered', { reason = 'heartbeat_lost' })
  return 'ready'
end
