-- @include room

-- Frees up to `limit` messages that a purge or a delete put into the trash. Returns how many.
local function empty_trash(trash, message, meta, limit, now)
  local popped = redis.call('ZPOPMIN', trash, limit)
  local room, bytes = 0, 0
  for i = 1, #popped, 2 do
    local hash = message .. popped[i]
    -- A dead letter was counted out when it died.
    if is_limited(popped[i]) and redis.call('HEXISTS', hash, 'died') == 0 then
      room = room + 1
      bytes = bytes + size_of(hash)
    end
    redis.call('UNLINK', hash)
  end
  make_room(meta, room, bytes, 'gone', now)
  return #popped / 2
end
