-- The headers and properties of a stored message.
local function envelope_in(payload)
  local ended = string.find(payload, '\n', 1, true)
  return ended and string.sub(payload, 1, ended - 1) or payload
end

-- Whether they may name a limiter (include/limiters.lua): nearly none does.
local function names_limiter(envelope)
  return string.find(envelope, '"x-limiter"', 1, true) ~= nil
end
