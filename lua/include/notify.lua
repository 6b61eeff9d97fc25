-- @include keep_ttl

-- Wakes the next consumer: a queue whose consumers differ says in `wakeup` whom, others have one wake-up.
local function notify(wakeup, meta)
  local record = redis.call('HMGET', meta, 'wakeup', 'ttl')
  wakeup = record[1] or wakeup
  redis.call('ZADD', wakeup, 0, 'work')
  keep_ttl(record[2], wakeup)
end
