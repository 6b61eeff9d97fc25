-- A queue's id, and behind an R how often its arguments were changed since it was declared.

-- The id without that: messages from before a change are the queue's own, too.
local function base_id(id)
  return id and string.match(id, '^[^R]*')
end

local function next_revision(id)
  return base_id(id) .. 'R' .. string.format('%d', (tonumber(string.match(id, 'R(%d+)$')) or 0) + 1)
end
