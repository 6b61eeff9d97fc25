-- @include message
-- @include release_capacity
-- @include log_event

-- Frees up to `limit` messages that a purge or a delete put into the trash. Returns how many. `archive` is the record of the
-- events of a queue that was deleted, '' where `meta` has it. `places`: where a purge or a delete that failed has left their tags.
local function empty_trash(trash, message, meta, limit, now, archive, places)
  local tags = redis.call('ZRANGE', trash, 0, limit - 1)
  local room, bytes = 0, 0
  local deleted = archive ~= ''
  if deleted then log_of(meta, archive) end
  for _, tag in ipairs(tags) do
    local hash = message .. tag
    -- A dead letter was counted out when it died.
    if is_limited(tag) and not fields_of(hash, 'died')[1] then
      room = room + 1
      bytes = bytes + size_of(hash)
    end
    -- It is gone where a late ack was first.
    if redis.call('UNLINK', hash) == 1 then tell(meta, tag, 'purged', { reason = deleted and 'queue_deleted' or nil }) end
  end
  if #tags > 0 then
    for _, place in ipairs(places or {}) do redis.call('ZREM', place, unpack(tags)) end
    redis.call('ZREM', trash, unpack(tags))
  end
  make_room(meta, room, bytes, 'gone', now)
  return #tags
end
