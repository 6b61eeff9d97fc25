-- The mark of a new message, see `include/marks.lua`: whether its queue has limits, and whether its events are written.
local function mark_of(limited, told)
  if limited then return told and '=' or '~' end
  return told and '-' or '.'
end
