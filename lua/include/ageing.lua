-- @include tag

-- How many ms of waiting weigh as much as one level of priority: with `ageing` a message gains a level in so many.
local function level_of(ageing)
  return tonumber(ageing) or PRIORITY_BAND
end

-- The rank (0-255, 0 first) of a message: its field `rank`, where its score does not tell it.
local function rank_of(score, rank)
  rank = tonumber(rank)
  return rank and rank >= 0 and rank < 256 and rank or math.floor(score / PRIORITY_BAND)
end
