-- @include now
-- @include text
-- @include remove_waiting
-- @include tracked_message
-- @include deduplication
-- @include ageing

-- How a message is stored whose deduplication says that it takes the place of a waiting one. Its scope begins with 'replace/', 1 where it
-- is stored only in place of another one, '/', how long such messages wait at most since the first of them (ms, '' = for ever), '/'.
-- Only a message of the same task gives way: the publisher of another one learns its id first, and sends with that once more. So the
-- results of all that were replaced are that of the one that runs.
-- `queue` has its keys by name, `duplicate` is the message that stands, as `duplicate_of` returns it, `eta` when the new one is due.
-- Returns false and what to answer behind 'DUPLICATE ', where it is not stored. Else a table: `eta`; `ready_at`, since when the one before
-- is ready, and nil where it is not: the new one has its place, or calls that go on would push it back in a busy queue for ever; `size`,
-- the bytes that the one before counts for, and nil where there is none; and `finish(tag)`, for when the new one is stored.
local function replacement_of(dedup, duplicate, queue, eta)
  local only, max_wait = string.match(dedup, '^replace/(%d)/(%d*)/')
  local scope, _, own_task, key = parts_of(dedup)
  local tag, task = string.match(duplicate or '', '^(%S+) (%S+)$')
  local score, due
  if tag then score, due = find_waiting(queue, tag) end
  -- Moved to another queue, where it runs as it is.
  if tag and not score and scope == 'until-claimed' then tag = nil end
  if not tag and only == '1' then return false, ' ' end
  -- It is in work, and its scope is not over; or its task has to be known first.
  if tag and not (score and task == own_task) then return false, duplicate end

  local now = now_ms()
  local hash = tag and queue.message .. tag
  local kept = hash and fields_of(hash, 'waits_since', 'rank') or {}
  local ready_at
  if tag and not due then
    ready_at = score - rank_of(score, kept[2]) * level_of(redis.call('HGET', queue.meta, 'ageing'))
  end
  local since = max_wait ~= '' and (tonumber(kept[1] or '') or now)
  if since then
    if not (since > 0 and since <= now) then since = now end
    eta = '+' .. text(math.max(math.min(delay_of(eta), since + max_wait - now), 0))
  end
  local function finish(stored)
    if since then redis.call('HSET', queue.message .. stored, 'waits_since', text(since)) end
    if not tag then return remember_duplicate(dedup, stored, queue.message, eta) end
    if scope == 'ttl' then
      redis.call('SET', key, stored .. ' ' .. own_task, 'KEEPTTL')
    else
      remember_duplicate(dedup, stored, queue.message, eta)
    end
    local track = tracked_by(queue.meta, hash)
    release_capacity_of(queue, tag, now)
    redis.call('UNLINK', hash)
    remove_waiting(queue, tag, due)
    redis.call('HINCRBY', queue.meta, 'cancelled', 1)
    log_event(queue.meta, tag, 'cancelled', { reason = 'replaced' })
    tell_tracked(track, tag, 'gone')
  end
  return { eta = eta, ready_at = ready_at, size = tag and (is_bounded(tag) and size_of(hash) or 0), finish = finish }
end
