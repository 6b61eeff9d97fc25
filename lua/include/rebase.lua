-- @include text
-- @include ageing
-- @include message
-- @include damaged_message

-- The clock went back: what was noted by the time before must not last longer than it was meant to. `ahead` is the time of the last
-- sweep, or of the last publish, ahead of `now`.

local function rebase_pause(queue, now)
  local record = redis.call('HMGET', queue.meta, 'paused_at', 'paused_until')
  local paused_at, paused_until = tonumber(record[1] or 0), tonumber(record[2] or 0)
  if paused_at > now and paused_until > 0 then
    redis.call('HSET', queue.meta, 'paused_at', text(now), 'paused_until', text(now + paused_until - paused_at))
  end
end

-- Cuts the deadlines of up to `limit` claims to the visibility timeout (ms). Claims by processes with a longer one get theirs again by
-- their next heartbeat. Returns whether no more are to be cut.
local function rebase_claims(queue, now, visibility, limit)
  local latest = text(now + visibility)
  local beyond = redis.call('ZRANGEBYSCORE', queue.index, '(' .. latest, '+inf', 'LIMIT', 0, limit)
  local entries = {}
  for _, tag in ipairs(beyond) do
    entries[#entries + 1] = latest
    entries[#entries + 1] = tag
  end
  if #entries > 0 then redis.call('ZADD', queue.index, unpack(entries)) end
  return #beyond < limit
end

-- A message that waits for a time of its own (`delay`) waits for that time from now on, at most. Its place in the queue follows, or
-- it would stand behind all that is published until the clock has caught up.
local function rebase_delayed_message(queue, tag, due, now, newest, ageing)
  local hash = queue.message .. tag
  local fields = fields_of(hash, 'delay', 'score', 'rank')
  local latest = fields[1] and now + whole(fields[1])
  if not (latest and due > latest) then return end
  local score = whole(fields[2])
  if score then
    local place = rank_of(score, fields[3]) * level_of(ageing) + math.max(latest, newest)
    if place < score then redis.call('HSET', hash, 'score', text(place)) end
  end
  redis.call('ZADD', queue.delayed, text(latest), tag)
end

-- Walks about `limit` delayed messages a call: moments that publishers named stay where they are, so that a page by score would find
-- them again and again. Returns whether it is through. The cursor counts for this step of the clock only.
local function rebase_delayed(queue, now, ahead, limit)
  local record = redis.call('HMGET', queue.meta, 'rebase_cursor', 'newest', 'ageing')
  local cursor, of, at = string.match(record[1] or '', '^(%d+) (%d+) (%d+)$')
  if not cursor or tonumber(of) ~= ahead or tonumber(at) > now then cursor = '0' end
  local page = redis.call('ZSCAN', queue.delayed, cursor, 'COUNT', limit)
  for i = 1, #page[2], 2 do
    local tag, due = page[2][i], tonumber(page[2][i + 1])
    if due > now then
      contained(queue, tag, now, rebase_delayed_message, queue, tag, due, now, tonumber(record[2] or 0), record[3])
    end
  end
  if page[1] == '0' then
    redis.call('HDEL', queue.meta, 'rebase_cursor')
    return true
  end
  redis.call('HSET', queue.meta, 'rebase_cursor', page[1] .. ' ' .. text(ahead) .. ' ' .. text(now))
  return false
end

-- Returns whether all is done. `visibility` is a number of ms, or nil: claims stay as they are.
local function rebase(queue, now, ahead, visibility, limit)
  rebase_pause(queue, now)
  redis.call('HDEL', queue.meta, 'stalled', 'pacer', 'pacer_until', 'takeover_at')
  if visibility and not rebase_claims(queue, now, visibility, limit) then return false end
  return rebase_delayed(queue, now, ahead, limit)
end
