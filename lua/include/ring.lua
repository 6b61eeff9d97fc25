-- Wakes whoever is to be woken next: a queue whose consumers differ says in `bell` whom, others have one bell.
local function ring(bell, meta)
  redis.call('ZADD', redis.call('HGET', meta, 'bell') or bell, 0, 'work')
end
