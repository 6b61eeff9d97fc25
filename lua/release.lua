#!lua flags=allow-oom
-- Puts claimed messages back to their original place, without counting a failure: close, cancel, shutdown.
-- KEYS  1 queue (zset)  2 messages_index (zset)  3 message (prefix of a hash)  4 wakeup (zset)  5 expiry (zset)
--       6 schedule_wakeup (zset)  7 meta (hash)
-- ARGV  1 was seen by the consumer, so it is redelivered next time (0/1)
--       then pairs: tag, claim number; a pair with an old claim number changes nothing
-- Returns how many went back.
-- @include return_to_queue
-- @include log_event
-- @include notify
local queue = { ready = KEYS[1], expiry = KEYS[5], schedule_wakeup = KEYS[6] }
local ttl = redis.call('HGET', KEYS[7], 'ttl')
local returned = 0
for i = 2, #ARGV, 2 do
  local tag = ARGV[i]
  local hash = KEYS[3] .. tag
  local fields = fields_of(hash, 'claim', 'score', 'expires')
  if fields[1] == ARGV[i + 1] and fields[2] and redis.call('ZSCORE', KEYS[2], tag) then
    if ARGV[1] == '1' then redis.call('HSET', hash, 'seen', 1) end
    return_to_queue(queue, tag, fields[2], fields[3], ttl)
    redis.call('HDEL', hash, 'score', 'delay', 'owner')
    redis.call('ZREM', KEYS[2], tag)
    returned = returned + 1
    log_event(KEYS[7], tag, 'requeued', { claim = ARGV[i + 1], reason = 'handed_back' })
  end
end
if returned > 0 then notify(KEYS[4], KEYS[7]) end
return returned
