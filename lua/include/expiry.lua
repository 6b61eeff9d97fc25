-- @include text

-- Reads a message's expiry as publishers send it at `now`, and its queue's `message_ttl` (ms or false). Returns the time that it
-- lives once it is deliverable (ms), and the moment at which it expires (ms since the epoch), each false where there is none; and
-- whether that moment is a Celery task's own (include/expired_task.lua).
local function parse_expiry(expiry_text, message_ttl, now)
  local moment, ttl_ms, task = string.match(expiry_text, '^(%d*)%+?(%d*)(t?)$')
  moment, ttl_ms, message_ttl = tonumber(moment), tonumber(ttl_ms), tonumber(message_ttl)
  if task == 't' and ttl_ms then
    -- Celery makes it of the moment: what is left of it by the publisher's clock.
    moment, ttl_ms = math.min(moment or math.huge, now + ttl_ms), nil
  end
  if message_ttl and (not ttl_ms or message_ttl < ttl_ms) then ttl_ms = message_ttl end
  return ttl_ms or false, moment or false, task == 't'
end

-- The expiry (ms since the epoch) of a message that becomes deliverable at `now`; false without one.
local function expiry_of(ttl_ms, expires, now)
  if not ttl_ms then return expires end
  if not expires then return now + ttl_ms end
  return math.min(now + ttl_ms, expires)
end
