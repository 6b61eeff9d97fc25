-- Whether an original, message number `n` of its producer, is new here; remembers it. See docs/design/0003-idempotent-publish.md.
-- `producer` holds the last number, or `F` and the last number once a retry has fenced it.
-- An original comes in the order of its connection.
-- Callers store first, and take that back where it is not new: what is remembered and not stored would be lost at the retry.
local function is_new(producer, n, window_ms)
  local last = redis.call('SET', producer, n, 'PX', window_ms, 'GET')
  if not last then return true end
  if string.sub(last, 1, 1) ~= 'F' and tonumber(last) < tonumber(n) then return true end
  redis.call('SET', producer, last, 'PX', window_ms)
  return false
end
