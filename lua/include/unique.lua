-- A message with an `x-deduplication-id`, as `broker/unique.py` writes it: scope, how long the key lives (ms), task id, key. The key
-- holds the tag of the message that stands for the id, and its task's id; whether it still does is looked up when the next one
-- comes, so nothing has to be taken back where messages end.

-- @include message

-- The message that stands for it already, 'tag task'; false without one.
local function standing_for(unique, message)
  local scope, _, _, key = string.match(unique, '^(%S+) (%d+) (%S+) (.*)$')
  local standing = scope ~= 'renew' and redis.call('GET', key)
  if not standing or scope == 'ttl' then return standing end
  local found = fields_of(message .. string.match(standing, '^%S+'), 'payload', 'died', 'claim')
  if not found[1] or found[2] or (scope == 'until-claimed' and found[3]) then return false end
  return standing
end

local function stand_for(unique, tag)
  local _, ttl, task, key = string.match(unique, '^(%S+) (%d+) (%S+) (.*)$')
  redis.call('SET', key, tag .. ' ' .. task, 'PX', ttl)
end
