-- @include text
-- The keys of a transient queue live for so many ms, or so many times as long as its record, which is renewed in time: they are there
-- as long as the record is, and the messages need not be renewed as often as it. A janitor clears away what an expired record
-- leaves; this only bounds what is left where no process lives.
local KEYS_TTL_MS, KEYS_TTL_FACTOR = 3600000, 4

-- The time to live of the keys of a queue whose record lives for `expires` ms while it is unused.
local function keys_ttl(expires)
  return text(math.max(expires * KEYS_TTL_FACTOR, KEYS_TTL_MS))
end
