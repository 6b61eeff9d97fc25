-- @include message
-- @include release_capacity
-- @include log_event
-- @include tracked_message
-- @include queue_id
-- @include groups

-- The next tags of the trash, `limit` at most, and the number and the key of the set that has them; none where the trash is empty.
local function next_in_trash(trash, limit)
  while true do
    local number = redis.call('ZRANGE', trash, 0, 0)[1]
    if not number then return {} end
    local set = trash .. ':' .. number
    local tags = redis.call('ZRANGE', set, 0, limit - 1)
    if #tags > 0 then return tags, number, set end
    -- Its set was not moved, or has expired.
    redis.call('ZREM', trash, number)
  end
end

-- Frees up to `limit` messages that a purge or a delete put into the trash. Returns how many; 0 means that the trash is empty.
-- `event_log` is the record of the events of a queue that was deleted, '' where `meta` has it.
local function empty_trash(trash, message, meta, limit, now, event_log)
  local tags, number, set = next_in_trash(trash, limit)
  if #tags == 0 then return 0 end
  local id = base_id(redis.call('HGET', meta, 'id'))
  local freed, bytes = 0, 0
  local deleted = event_log ~= ''
  if deleted then log_of(meta, event_log) end
  for _, tag in ipairs(tags) do
    local hash = message .. tag
    -- A dead letter was counted out when it died, and a message of a deleted queue with its record.
    local counts = is_bounded(tag) and base_id(string.sub(tag, 21)) == id and not fields_of(hash, 'died')[1]
    local size = counts and size_of(hash)
    local track = tracked_by(meta, hash)
    local group = is_grouped(tag) and groups().group_of(hash)
    -- It is gone where a late ack was first, and where it was in two sets.
    if redis.call('UNLINK', hash) == 1 then
      if counts then
        freed = freed + 1
        bytes = bytes + size
      end
      -- The groups of a queue that was deleted have gone with it.
      if group and deleted then group = group.limiter and { limiter = group.limiter } end
      if group then groups().leave(meta, tag, group, redis.call('ZSCORE', set, tag)) end
      tell_tracked(track, tag, 'gone')
      log_event(meta, tag, 'purged', { reason = deleted and 'queue_deleted' or nil })
    end
  end
  redis.call('ZREM', set, unpack(tags))
  if redis.call('EXISTS', set) == 0 then redis.call('ZREM', trash, number) end
  release_capacity(meta, freed, bytes, 'gone', now)
  return #tags
end
