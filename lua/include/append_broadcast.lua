-- @include now
-- @include text

-- Bytes; readers ask for the number of the last larger one (`broker/fanout/reader.py`), and how large they get, before they read many.
local LARGE = 16384

-- Appends a broadcast, and drops the oldest beyond `keep` entries (about) and `max_age` (ms; '0' = any). Returns its id.
-- The entry's head starts with its number in the stream: a reader that misses one knows how many it missed.
local function append_broadcast(stream, fanout, payload, identity, routing_key, keep, max_age)
  local number = redis.call('HINCRBY', fanout, 'count', 1)
  if #payload > LARGE then
    local largest = tonumber(redis.call('HGET', fanout, 'largest') or 0)
    redis.call('HSET', fanout, 'large', text(number), 'largest', text(math.max(largest, #payload)))
  end
  local head = text(number) .. ' ' .. identity .. ' ' .. routing_key
  local id = redis.pcall('XADD', stream, 'MAXLEN', '~', keep, '*', 'head', head, 'payload', payload)
  if type(id) == 'table' then
    -- Subscribers would miss the number.
    redis.call('HINCRBY', fanout, 'count', -1)
    error(id)
  end
  if max_age ~= '0' and number % 100 == 0 then
    redis.call('XTRIM', stream, 'MINID', '~', text(now_ms() - max_age))
  end
  return id
end
