-- Moves whole sets of messages into the trash, each as a set of its own: a RENAME costs the same however many they are. The caller
-- then has the trash emptied (`trash_messages.lua`). Returns how many messages went.
local function to_trash(trash, sets)
  local moved = 0
  for _, set in ipairs(sets) do
    local count = redis.call('ZCARD', set)
    if count > 0 then
      moved = moved + count
      local number = (redis.call('ZRANGE', trash, -1, -1)[1] or 0) + 1
      -- The number first: a set that nothing lists would stay for ever, a number without a set is passed over.
      redis.call('ZADD', trash, number, number)
      redis.call('RENAME', set, trash .. ':' .. number)
    end
  end
  return moved
end
