-- @include log_event

-- Entries that one call of the script trims at most, over all its queues.
local trim_room = 5000

-- The number of the first entry of `epoch` from `first` to before `past` that is not older than `oldest` (µs); `past` without one.
local function first_kept_by_age(log, epoch, first, past, oldest)
  while first < past do
    local middle = math.floor((first + past) / 2)
    local id = epoch .. '-' .. text(middle)
    local found = redis.call('XRANGE', log.events, id, '+', 'COUNT', 1)
    local ts = found[1] and string.match(found[1][2][2], '^[^\t]*\t(%d+)')
    if ts and tonumber(ts) < oldest then first = middle + 1 else past = middle end
  end
  return first
end

-- The number after the last entry of `epoch` that every registered reader has committed.
local function first_uncommitted(log, epoch, past)
  local kept = past
  for _, commit in ipairs(redis.call('HVALS', log.readers)) do
    local of, n = string.match(commit, '^(%d+)%-(%d+)')
    if of and tonumber(of) == epoch then kept = math.min(kept, n + 1) end
    if not of or tonumber(of) < epoch then kept = 0 end
  end
  return kept
end

-- Keeps a queue's events within their bounds: number and age, but not past what a registered reader has committed; past that
-- only at the hard bound. One epoch at a time, within `trim_room`. Returns how many entries went that a reader had not committed,
-- how many events were not written since the last call because memory was full, and whether more may have to go at once. Raises why
-- none can be written.
local function trim_events(meta)
  local log = log_of(meta)
  if not log and _log_failures[meta] then error(_log_failures[meta], 0) end
  if not log then return 0, 0, false end
  local counts = redis.call('HMGET', log.meta, 'skipped', 'skipped_logged')
  local skipped = (tonumber(counts[1]) or 0) - (tonumber(counts[2]) or 0)
  if skipped > 0 then redis.call('HSET', log.meta, 'skipped_logged', counts[1]) end
  local head = redis.call('XRANGE', log.events, '-', '+', 'COUNT', 1)[1]
  if not head then return 0, skipped, false end
  local epoch, first = string.match(head[1], '^(%d+)%-(%d+)$')
  epoch, first = tonumber(epoch), tonumber(first)
  local length = redis.call('XLEN', log.events)
  local past = first + math.min(length, trim_room)
  local kept = math.max(first + length - log.maxlen, first_kept_by_age(log, text(epoch), first, past, (now_ms() - log.age) * 1000))
  local uncommitted = first_uncommitted(log, epoch, past)
  kept = math.min(past, math.max(math.min(kept, uncommitted), first + length - log.hard_maxlen))
  if kept <= first then return 0, skipped, trim_room == 0 end
  local trimmed = redis.call('XTRIM', log.events, 'MINID', text(epoch) .. '-' .. text(kept))
  trim_room = trim_room - trimmed
  local overrun = math.min(trimmed, math.max(0, kept - math.max(first, uncommitted)))
  if overrun > 0 then redis.pcall('HINCRBY', log.meta, 'overrun', overrun) end
  -- Behind the last one of an epoch the next may begin.
  return overrun, skipped, kept == past and trimmed < length
end
