-- Reads the field `limited` of a queue's record (`broker/arguments/limits.py`): numbers or nil, texts.
local function read_limits(limited)
  local length, bytes, pending, overflow, throttle = string.match(limited, '^(%S+) (%S+) (%S+) (%S+) (%S+)')
  return tonumber(length), tonumber(bytes), tonumber(pending), overflow, throttle
end

local function limits_bytes(limited)
  return string.find(limited, '^%S+ %d') ~= nil
end
