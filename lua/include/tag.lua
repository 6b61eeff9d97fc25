-- @include text

-- One priority level spans 10^13 ms of scores, so that no age of a message ever crosses into the next level.
local LEVEL = 1e13

-- The tag of the `published`-th message of the queue `id`; `mark` says what the queue has besides, see include/marks.lua.
local function new_tag(now, published, mark, id)
  return string.format('%011x%08x%s%s', now, published % 4294967296, mark, id)
end

-- Whether the events of the queue's message number `published` are to be written: `events.sampled`.
local function is_sampled(published, permille)
  return published % 4294967296 * 919 % 1000 < permille
end
