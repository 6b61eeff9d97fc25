-- The character of a tag before its queue's id: '.' plain, '~' the queue has limits, '-' the message's events are written, '=' both.
local PLAIN, LIMITED, TOLD, LIMITED_AND_TOLD = 46, 126, 45, 61

local function is_plain(tag)
  return string.byte(tag, 20) == PLAIN
end
