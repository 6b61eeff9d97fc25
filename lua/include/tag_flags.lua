-- The character of a tag before its queue's id: '.' plain, '~' the queue has limits, '-' the message's events are written, '=' both; ',', '@',
-- '_' and '+': the same four, and the message is of a group or has a limiter.
local PLAIN = 46

local function is_plain(tag)
  return string.byte(tag, 20) == PLAIN
end
