-- Moves whole sets of messages into the trash; the caller then has it emptied. Returns how many messages went.
local function to_trash(trash, sets)
  local moved = 0
  for _, set in ipairs(sets) do
    local count = redis.call('ZCARD', set)
    if count > 0 then
      moved = moved + count
      if redis.call('EXISTS', trash) == 0 then
        redis.call('RENAME', set, trash)
      else
        redis.call('ZUNIONSTORE', trash, 2, trash, set)
        redis.call('UNLINK', set)
      end
    end
  end
  return moved
end
