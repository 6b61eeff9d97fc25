-- @include text
-- @include new_tag

-- Whether the events of the queue's message number `published` are to be written: `events.sampled`.
local function is_sampled(published, permille)
  return published % 4294967296 * 919 % 1000 < permille
end

-- The mark of a message whose queue has `limits`, or none, whose events are `logged`, and that has `holders`: a group, or a limiter.
local function mark_of(limits, logged, holders)
  if holders then return limits and (logged and '+' or '@') or (logged and '_' or ',') end
  if limits then return logged and '=' or '~' end
  return logged and '-' or '.'
end
