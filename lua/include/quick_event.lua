-- Lifecycle events the quick way, for the scripts that every message runs through: publish, claim, ack. It serves logs that take
-- every event and nothing besides (no index, no payload), while `log` in the queue's record, which `include/event.lua` writes, says
-- that the server was looked at just now and its memory is not full. What it does not serve goes through `tell`: to make those
-- functions costs each call more than to write an entry.
local NO_DESCRIPTION = '\t\t\t\t\t\t\t\t\t\t'
-- Milliseconds between two looks at the server's memory and identity, which cost 30 µs.
local LOOK_MS = 100

-- The id of the next entry, how many of a thousand messages are told of, and the key of the queue's stream; nothing where `tell`
-- has to write. `log` is the record's field.
local function quick_log(log, now)
  if not log then return end
  local id, looked, permille, key = string.match(log, '^(%S+) (%d+) (%d+) (.*)$')
  if math.abs(now - looked) < LOOK_MS then return id, permille, key end
end
