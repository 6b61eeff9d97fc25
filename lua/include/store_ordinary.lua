-- @include now
-- @include tag
-- @include accept_original

-- Stores an original that is due at once and for ever, as nearly all are, without the functions of `enqueue`: each call of a script
-- makes the functions anew that it comes by. `record` is HMGET meta of RECORD there; `log` is that of the queue's events. Returns the
-- tag; '' for one that its retry has overtaken.
local function store_ordinary(meta, ready, message, wakeup, producer, record, log, payload, rank, n, window_ms)
  local time, published = newest_of(record[11], now_ms()), tonumber(record[10] or 0) + 1
  redis.call('HSET', meta, 'published', published, 'newest', time)
  local tag = new_tag(time, published, mark_of(record[5], log and is_sampled(published, log.permille)), record[1])
  -- Its place comes first: a script that meets a tag without a message drops it, and a message without a place would stay for ever.
  redis.call('ZADD', ready, rank * PRIORITY_BAND + time, tag)
  redis.call('HSET', message .. tag, 'payload', payload)
  redis.call('ZADD', wakeup, 0, 'work')
  -- Remembered first, it would be lost at the retry if it could not be stored.
  local fine, new = pcall(accept_original, producer, n, window_ms)
  if fine and new then return tag end
  redis.call('UNLINK', message .. tag)
  redis.call('ZREM', ready, tag)
  redis.call('HINCRBY', meta, 'published', -1)
  return fine and '' or error(new, 0)
end
