-- The character of a tag before its queue's id: '.' plain, '~' the queue has limits, '-' the message's events are written, '=' both.
local PLAIN, BOUNDED, LOGGED, BOUNDED_AND_LOGGED = 46, 126, 45, 61

local function is_plain(tag)
  return string.byte(tag, 20) == PLAIN
end
