-- Whether message number `n` is new here; remembers it. See docs/design/0003-idempotent-publish.md. `producer` holds the last number
-- of its producer, or `F` and the last number once a retry has fenced it. Originals come in the order of their connection.
local function accept_original(producer, n, window_ms)
  local last = redis.call('SET', producer, n, 'PX', window_ms, 'GET')
  if not last or (string.sub(last, 1, 1) ~= 'F' and tonumber(last) < tonumber(n)) then return true end
  redis.call('SET', producer, last, 'PX', window_ms)
  return false
end
