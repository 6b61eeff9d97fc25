-- @include keep_ttl

-- Wakes whoever is to be woken next: a queue whose consumers differ says in `bell` whom, others have one bell.
local function ring(bell, meta)
  local record = redis.call('HMGET', meta, 'bell', 'ttl')
  bell = record[1] or bell
  redis.call('ZADD', bell, 0, 'work')
  keep_ttl(record[2], bell)
end
