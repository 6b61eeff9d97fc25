-- One priority level spans 10^13 ms of scores, so that no age of a message ever crosses into the next level.
local PRIORITY_BAND = 1e13

-- The time (ms) by which a message that is published at `now` gets its tag and its place. `newest`, a field of the queue's record, is
-- the latest one that was given there: also where the clock goes back, no message stands before those from before.
local function newest_of(newest, now)
  newest = tonumber(newest)
  return newest and newest > now and newest or now
end

-- The tag of the `published`-th message of the queue `id`; `flag` says what the queue has besides, see include/tag_flags.lua.
local function new_tag(time, published, flag, id)
  return string.format('%011x%08x%s%s', time, published % 4294967296, flag, id)
end
