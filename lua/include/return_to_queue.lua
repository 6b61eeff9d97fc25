-- @include text
-- @include dead_letter
-- @include retry_delay
-- @include ageing
-- @include keep_ttl
-- @include groups

-- Notes when a ready message expires (ms; false = never). `ttl` is that of the queue's record.
local function list_expiry(queue, tag, expires, ttl)
  if not expires then return end
  redis.call('ZADD', queue.expiry, expires, tag)
  -- The sweeper may not know of it: while the message was claimed, nothing was due.
  redis.call('ZADD', queue.schedule_wakeup, 0, 'due')
  keep_ttl(ttl, queue.expiry, queue.schedule_wakeup)
end

-- Makes a message ready again that was claimed or delayed, where it stood before; the caller then takes it out of its place.
-- `expires` is its expiry (ms) or false, `ttl` that of the queue's record.
local function return_to_queue(queue, tag, score, expires, ttl)
  redis.call('ZADD', queue.ready, score, tag)
  if is_grouped(tag) then groups().return_to_group(queue.meta, tag) end
  list_expiry(queue, tag, expires, ttl)
  keep_ttl(ttl, queue.ready)
end

-- What `return_failed` needs of a queue's record.
local FAILURE_RULES = { 'ttl', 'dlx', 'limit', 'retry', 'ageing' }

-- What ended at its limit in this call, at most MOST_TOLD messages, for the caller's log: the key of the queue's record, tag, failed
-- deliveries, where it is now ('store', 'exchange', 'discarded'), its headers and properties.
local MOST_TOLD, LONGEST_ENVELOPE = 10, 65536
local deaths = {}

-- The part of a message's payload that names its task.
local function envelope_of(hash)
  local envelope = string.match(redis.call('HGET', hash, 'payload') or '', '^[^\n]*')
  return #envelope > LONGEST_ENVELOPE and '' or envelope
end

local function note_death(queue, rules, tag, failures)
  if #deaths >= 5 * MOST_TOLD then return end
  local place = rules[2] and 'exchange' or tonumber(rules[1]) and 'discarded' or 'store'
  for _, part in ipairs({ queue.meta, tag, failures, place, envelope_of(queue.message .. tag) }) do deaths[#deaths + 1] = part end
end

-- The place of a message that is tried again at `due` (ms): among its priority as one that was published then. In its old place it would
-- stand before all that have come since, and many that fail would keep these from their turn.
local function retry_place(queue, rules, tag, score, due)
  local rank = rank_of(tonumber(score), rules[5] and redis.call('HGET', queue.message .. tag, 'rank'))
  return text(rank * level_of(rules[5]) + due)
end

-- Puts back a message after a delivery that is over. `how`: 'lost' with its consumer, for the reason `why`; 'failed', as its consumer says;
-- 'timed_out': its consumer has not settled it in time; 'asked': its
-- consumer wants it to be delivered again, which is a failure only where the queue has a limit of its own. At the limit the message
-- dies, or where the retry policy is at its end. `rules` is HMGET meta of FAILURE_RULES, `limit` holds for queues without one of
-- their own (-1 = none), `wait` the delay (ms) that its consumer wants instead of the queue's (-1 or nil = none). Returns 'ready';
-- 'delayed', and which delivery it was that the policy or the pause counts; 'dead'. The caller then takes it out of its place.
local function return_failed(queue, rules, limit, tag, score, expires, now, how, why, wait)
  local hash = queue.message .. tag
  local counts = how ~= 'asked' or rules[3]
  redis.call('HINCRBY', hash, counts and 'failed' or 'requeues', 1)
  local fields = redis.call('HMGET', hash, 'failed', 'requeues')
  local failures = tonumber(fields[1] or 0)
  local attempt = failures + tonumber(fields[2] or 0)
  limit = tonumber(rules[3]) or tonumber(limit)
  local delay
  if rules[4] then
    local class = false
    if has_errors(rules[4]) and (how == 'failed' or how == 'asked') then
      local ended = redis.call('HMGET', hash, 'error', 'erred', 'claim')
      -- That of an earlier delivery says nothing of this one.
      class = ended[1] and ended[2] == ended[3] and string.match(ended[1], '^[^:\t]+') or false
    end
    delay = retry_delay(rules[4], attempt, tag, class)
  end
  if delay == nil then delay = how ~= 'lost' and requeue_pause(attempt) or 0 end
  if delay and wait and wait >= 0 then delay = wait end
  local at_limit = limit >= 0 and failures >= limit
  if at_limit or not delay then
    note_death(queue, rules, tag, failures)
    dead_letter(queue, rules, tag, score, at_limit and 'delivery_limit' or 'retry_policy', now)
    return 'dead'
  end
  local reason = how == 'lost' and (why or 'heartbeat_lost') or how == 'timed_out' and 'consumer_timeout' or counts and 'rejected' or 'requeue'
  local err = error_of(hash, tag)
  if delay == 0 then
    return_to_queue(queue, tag, score, expires, rules[1])
    redis.call('HDEL', hash, 'score', 'delay', 'owner')
    log_event(queue.meta, tag, how == 'lost' and 'recovered' or 'requeued', { reason = reason, error = err })
    return 'ready'
  end
  if how ~= 'lost' then score = retry_place(queue, rules, tag, score, now + delay) end
  redis.call('HSET', hash, 'score', score, 'delay', text(delay))
  redis.call('ZADD', queue.delayed, text(now + delay), tag)
  redis.call('ZADD', queue.schedule_wakeup, 0, 'due')
  keep_ttl(rules[1], queue.delayed, queue.schedule_wakeup)
  redis.call('HDEL', hash, 'owner')
  if is_grouped(tag) then groups().step_aside(queue.meta, tag) end
  log_event(queue.meta, tag, 'retried', { reason = reason, error = err, delay = text(delay) })
  return 'delayed', attempt
end

-- Puts back a message whose consumer was lost. A message's first failure counts in any case: its consumer does not tell how far it
-- had come. From then on the consumer says when it begins (`mark_begun.lua`), and a loss before that is no failure of the message, unless
-- there were more than `most_unbegun` of them: a message may kill its consumers before they can say so. Returns as
-- `return_failed`.
local function most_unbegun(limit)
  return limit < 0 and math.huge or 5 * limit + 10
end

local function return_lost(queue, rules, limit, tag, score, expires, now, why)
  local hash = queue.message .. tag
  local fields = redis.call('HMGET', hash, 'failed', 'claim', 'begun')
  if tonumber(fields[1] or 0) == 0 or fields[3] == fields[2]
    or redis.call('HINCRBY', hash, 'unbegun', 1) > most_unbegun(tonumber(rules[3]) or tonumber(limit)) then
    return return_failed(queue, rules, limit, tag, score, expires, now, 'lost', why)
  end
  return_to_queue(queue, tag, score, expires, rules[1])
  redis.call('HDEL', hash, 'owner', 'score', 'delay')
  log_event(queue.meta, tag, 'recovered', { reason = 'not_begun' })
  return 'ready'
end
