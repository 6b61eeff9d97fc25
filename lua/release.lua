#!lua flags=allow-oom
-- Puts claimed messages back to their original place, without counting a failure: close, cancel, shutdown; at once, or after a wait.
-- KEYS  1 queue (zset)  2 messages_index (zset)  3 message (prefix of a hash)  4 wakeup (zset)  5 expiry (zset)
--       6 schedule_wakeup (zset)  7 meta (hash)  8 delayed (zset)
-- ARGV  1 was seen by the consumer, so it is redelivered next time (0/1); 2: the same, and an operator takes it from its consumer
--       then triples: tag, claim number, ms for which it waits (0 = none); one with an old claim number changes nothing
-- Returns how many went back.
-- Bound: the messages that are given.
-- @include now
-- @include return_to_queue
-- @include damaged_message
-- @include log_event
-- @include notify
local queue = { ready = KEYS[1], message = KEYS[3], expiry = KEYS[5], schedule_wakeup = KEYS[6], meta = KEYS[7], delayed = KEYS[8] }
local ttl = redis.call('HGET', KEYS[7], 'ttl')
local returned, ready = 0, 0
for i = 2, #ARGV, 3 do
  local tag = ARGV[i]
  local hash = KEYS[3] .. tag
  local fields = fields_of(hash, 'claim', 'score', 'expires')
  if fields[1] == ARGV[i + 1] and fields[2] and redis.call('ZSCORE', KEYS[2], tag) then
    if ARGV[1] ~= '0' then redis.call('HSET', hash, 'seen', 1) end
    local wait = tonumber(ARGV[i + 2])
    if wait > 0 then
      redis.call('HSET', hash, 'delay', text(wait))
      redis.call('ZADD', KEYS[8], text(now_ms() + wait), tag)
      redis.call('ZADD', queue.schedule_wakeup, 0, 'due')
      keep_ttl(ttl, KEYS[8], queue.schedule_wakeup)
      redis.call('HDEL', hash, 'owner')
      if is_grouped(tag) then groups().step_aside(KEYS[7], tag) end
      log_event(KEYS[7], tag, 'retried', { claim = ARGV[i + 1], reason = 'handed_back', delay = text(wait) })
    else
      if contained(queue, tag, now_ms(), return_to_queue, queue, tag, fields[2], fields[3], ttl) ~= 'damaged' then
        redis.call('HDEL', hash, 'score', 'delay', 'owner')
        ready = ready + 1
        log_event(KEYS[7], tag, 'requeued', { claim = ARGV[i + 1], reason = ARGV[1] == '2' and 'kicked' or 'handed_back' })
      end
    end
    redis.call('ZREM', KEYS[2], tag)
    returned = returned + 1
  end
end
if ready > 0 then notify(KEYS[4], KEYS[7]) end
return returned
