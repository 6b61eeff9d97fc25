-- The record `producer` of a producer holds the number of its last original, or `F` and the number once a retry has fenced it: see
-- docs/design/0003-idempotent-publish.md.

-- Keeps a late original of this producer from being stored any more: its retry is here, to be stored, refused, or to wait.
-- Returns 'F' and the number of the last original that was stored.
local function fence_producer(producer, window_ms)
  local last = redis.call('GET', producer) or '0'
  if string.sub(last, 1, 1) ~= 'F' then last = 'F' .. last end
  redis.call('SET', producer, last, 'PX', window_ms)
  return last
end

-- Whether message number `n` is new here. A retry may come in any order, on any connection. Remembers nothing: the caller calls
-- `remember_number` when the message is stored.
local function accept(producer, n, retry, window_ms)
  if retry then
    local last = fence_producer(producer, window_ms)
    return tonumber(n) > tonumber(string.sub(last, 2)) and redis.call('EXISTS', producer .. ':' .. n) == 0
  end
  local last = redis.call('GET', producer)
  return not last or (string.sub(last, 1, 1) ~= 'F' and tonumber(last) < tonumber(n))
end

-- Notes that message number `n` is stored.
local function remember_number(producer, n, retry, window_ms)
  if retry then
    redis.call('SET', producer .. ':' .. n, 1, 'PX', window_ms)
  else
    redis.call('SET', producer, n, 'PX', window_ms)
  end
end

-- Whether message number `n` is stored, or was. Remembers nothing. (An original that is fenced out is not.)
local function was_stored(producer, n)
  local last = redis.call('GET', producer)
  local up_to = last and tonumber((string.gsub(last, 'F', ''))) or 0
  return tonumber(n) <= up_to or redis.call('EXISTS', producer .. ':' .. n) == 1
end
