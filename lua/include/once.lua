-- Whether the producer's message number `n` is new here; remembers it. See docs/design/0003-idempotent-publish.md.
-- `producer` holds the last number, or `F` and the last number once a retry has fenced it.
-- An original comes in the order of its connection; a retry may come in any order, on any connection.
local function first_time(producer, n, retry, window_ms)
  if not retry then
    local last = redis.call('SET', producer, n, 'PX', window_ms, 'GET')
    if not last then return true end
    if string.sub(last, 1, 1) ~= 'F' and tonumber(last) < tonumber(n) then return true end
    redis.call('SET', producer, last, 'PX', window_ms)
    return false
  end
  local last = redis.call('GET', producer) or '0'
  if string.sub(last, 1, 1) ~= 'F' then last = 'F' .. last end
  redis.call('SET', producer, last, 'PX', window_ms)
  if tonumber(n) <= tonumber(string.sub(last, 2)) then return false end
  return redis.call('SET', producer .. ':' .. n, 1, 'NX', 'PX', window_ms) and true or false
end

-- Keeps a late original of this producer from being stored any more: its retry is about to be refused, or to wait.
local function fence(producer, window_ms)
  local last = redis.call('GET', producer) or '0'
  if string.sub(last, 1, 1) ~= 'F' then last = 'F' .. last end
  redis.call('SET', producer, last, 'PX', window_ms)
end

-- Whether message number `n` is stored, or was. Remembers nothing. (An original that is fenced out is not.)
local function seen_before(producer, n)
  local last = redis.call('GET', producer)
  local up_to = last and tonumber((string.gsub(last, 'F', ''))) or 0
  return tonumber(n) <= up_to or redis.call('EXISTS', producer .. ':' .. n) == 1
end
