-- A message with an `x-deduplication-id`, as `broker/unique.py` writes it: scope, how long the key lives (ms), key. The key holds the
-- tag of the message that stands for the id; whether it still does is looked up when the next one comes, so nothing has to be
-- taken back where messages end.

-- The tag of the message that stands for it already; false without one.
local function standing_for(unique, message)
  local scope, _, key = string.match(unique, '^(%S+) (%d+) (.*)$')
  local tag = scope ~= 'renew' and redis.call('GET', key)
  if not tag or scope == 'ttl' then return tag end
  local found = redis.call('HMGET', message .. tag, 'payload', 'died', 'claim')
  if not found[1] or found[2] or (scope == 'until-claimed' and found[3]) then return false end
  return tag
end

local function stand_for(unique, tag)
  local _, ttl, key = string.match(unique, '^(%S+) (%d+) (.*)$')
  redis.call('SET', key, tag, 'PX', ttl)
end
