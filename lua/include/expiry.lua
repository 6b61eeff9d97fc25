-- @include text

-- Reads a message's life as publishers send it, and its queue's `message_ttl` (ms or false). Returns the time that it lives once
-- it is deliverable (ms), and the moment at which it expires (ms since the epoch); each false where there is none.
local function parse_expiry(life, message_ttl)
  local moment, lives = string.match(life, '^(%d*)%+?(%d*)$')
  lives, message_ttl = tonumber(lives), tonumber(message_ttl)
  if message_ttl and (not lives or message_ttl < lives) then lives = message_ttl end
  return lives or false, tonumber(moment) or false
end

-- The expiry (ms since the epoch) of a message that becomes deliverable at `now`; false without one.
local function expiry_of(lives, expires, now)
  if not lives then return expires end
  if not expires then return now + lives end
  return math.min(now + lives, expires)
end
