-- @include tag

-- How many ms of waiting weigh as much as one level of priority: with `ageing` a message gains a level in so many.
local function level_of(ageing)
  return tonumber(ageing) or LEVEL
end
