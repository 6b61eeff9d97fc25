-- @include room
-- @include event

-- Frees up to `limit` messages that a purge or a delete put into the trash. Returns how many. `archive` is the record of the
-- events of a queue that was deleted, '' where `meta` has it.
local function empty_trash(trash, message, meta, limit, now, archive)
  local popped = redis.call('ZPOPMIN', trash, limit)
  local room, bytes = 0, 0
  local deleted = archive ~= ''
  if deleted then log_of(meta, archive) end
  for i = 1, #popped, 2 do
    local tag = popped[i]
    local hash = message .. tag
    -- A dead letter was counted out when it died.
    if is_limited(tag) and redis.call('HEXISTS', hash, 'died') == 0 then
      room = room + 1
      bytes = bytes + size_of(hash)
    end
    -- It is gone where a late ack was first.
    if redis.call('UNLINK', hash) == 1 then tell(meta, tag, 'purged', { reason = deleted and 'queue_deleted' or nil }) end
  end
  make_room(meta, room, bytes, 'gone', now)
  return #popped / 2
end
