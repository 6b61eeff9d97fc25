-- @include now
-- @include tag

-- Whether message number `n` is new here; remembers it. See docs/design/0003-idempotent-publish.md. `producer` holds the last number
-- of its producer, or `F` and the last number once a retry has fenced it. Originals come in the order of their connection.
local function accept_original(producer, n, window_ms)
  local last = redis.call('SET', producer, n, 'PX', window_ms, 'GET')
  if not last or (string.sub(last, 1, 1) ~= 'F' and tonumber(last) < tonumber(n)) then return true end
  redis.call('SET', producer, last, 'PX', window_ms)
  return false
end

-- Stores an original that is due at once and for ever, as nearly all are, without the functions of `enqueue`: each call of a script
-- makes the functions anew that it comes by. `record` is HMGET meta of RECORD there; `log` is that of the queue's events. Returns the
-- tag; '' for one that its retry has overtaken.
local function store_ordinary(meta, ready, message, wakeup, producer, record, log, payload, rank, n, window_ms)
  local time, published = newest_of(record[11], now_ms()), tonumber(record[10] or 0) + 1
  redis.call('HSET', meta, 'published', published, 'newest', time)
  local tag = new_tag(time, published, mark_of(record[5], log and is_sampled(published, log.permille)), record[1])
  -- Its place comes first: whoever meets a tag without a message drops it, and a message without a place would stay for ever.
  redis.call('ZADD', ready, rank * PRIORITY_BAND + time, tag)
  redis.call('HSET', message .. tag, 'payload', payload)
  redis.call('ZADD', wakeup, 0, 'work')
  -- Remembered first, it would be lost at the retry if it could not be stored.
  local fine, new = pcall(accept_original, producer, n, window_ms)
  if fine and new then return tag end
  redis.call('UNLINK', message .. tag)
  redis.call('ZREM', ready, tag)
  redis.call('HINCRBY', meta, 'published', -1)
  return fine and '' or error(new)
end
