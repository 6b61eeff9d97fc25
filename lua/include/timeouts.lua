-- @include text
-- @include message

-- Any process may sweep a queue, and the visibility timeouts of those that hold its messages may differ from its own. So the
-- queue's record has the shortest and the longest of them (ms), each with the time when it was heard last.

-- How long a timeout counts that is told no more (ms).
local TOLD_MS = 3600000

-- Returns the shortest timeout, when it was heard, the longest one, when it was heard; nothing where none was.
local function timeouts_of(field)
  local shortest, shortest_at, longest, longest_at = string.match(field or '', '^(%d+) (%d+) (%d+) (%d+)$')
  return tonumber(shortest), tonumber(shortest_at), tonumber(longest), tonumber(longest_at)
end

-- Notes that somebody holds messages of the queue for `timeout` ms without a heartbeat.
local function note_timeout(meta, timeout, now)
  local record = fields_of(meta, 'id', 'timeouts')
  if not record[1] then return end
  local shortest, shortest_at, longest, longest_at = timeouts_of(record[2])
  local function heard(noted, at, beyond)
    if not noted or beyond or now - at > TOLD_MS then return timeout, now end
    -- Seldom, since each write is replicated; and a time in the future is from before a step of the clock back.
    if at > now or (noted == timeout and now - at > TOLD_MS / 10) then at = now end
    return noted, at
  end
  shortest, shortest_at = heard(shortest, shortest_at, shortest and timeout < shortest)
  longest, longest_at = heard(longest, longest_at, longest and timeout > longest)
  local noted = text(shortest) .. ' ' .. text(shortest_at) .. ' ' .. text(longest) .. ' ' .. text(longest_at)
  if noted ~= record[2] then redis.call('HSET', meta, 'timeouts', noted) end
end
