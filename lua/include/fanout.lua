-- @include now
-- @include text

-- A subscriber's record is text: cursor, number of the cursor's entry, since (ms), timeout (ms), state, label, counts.
-- The label is host:pid/process. States: bound (no reader yet), live, suspect (overdue once, or its process is lost), left (a durable one whose reader went in order).

-- One that somebody else wrote counts as that of a subscriber which has processed nothing; its next heartbeat writes it anew.
local function parse_record(record)
  local cursor, number, since, timeout, state, label, counts =
    string.match(record, '^(%d+%-%d+) (%d+) (%d+) (%d+) (%S+) (%S+) ?(%S*)$')
  if not cursor then
    return { cursor = '0-0', number = 0, since = text(now_ms()), timeout = '0', state = 'live', label = '-', counts = '' }
  end
  return { cursor = cursor, number = tonumber(number), since = since, timeout = timeout, state = state, label = label, counts = counts }
end

local function format_record(r)
  return table.concat({ r.cursor, text(r.number), r.since, r.timeout, r.state, r.label, r.counts or '' }, ' ')
end

-- The newest id that the stream has given out; it outlives the entry.
local function last_id(stream)
  if redis.call('EXISTS', stream) == 0 then return '0-0' end
  local info = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

-- Stream and counters have an end while there is no subscriber: remove_expired_subscribers.lua.
local function keep_for_subscriber(stream, fanout)
  redis.call('PERSIST', stream)
  redis.call('PERSIST', fanout)
end

local function broadcasts_so_far(fanout)
  return tonumber(redis.call('HGET', fanout, 'count') or 0)
end

-- The clock went back: no subscriber may be silent for longer than it is given.
local function rebase_subscribers(subscribers, records, now)
  local listed = redis.call('ZRANGEBYSCORE', subscribers, '(' .. text(now), '+inf', 'WITHSCORES')
  for i = 1, #listed, 2 do
    local record = redis.call('HGET', records, listed[i])
    local latest = now + (record and parse_record(record).timeout or 0)
    if tonumber(listed[i + 1]) > latest then redis.call('ZADD', subscribers, text(latest), listed[i]) end
  end
end

-- Tells whether the last trim is half a second ago, and notes this one: reports come each second, or a little sooner. The note in
-- the future is what tells that the clock went back.
local function trim_due(fanout, subscribers, records, now)
  local trimmed = tonumber(redis.call('HGET', fanout, 'trimmed') or 0)
  if trimmed > now then rebase_subscribers(subscribers, records, now) end
  if math.abs(now - trimmed) < 500 or redis.call('EXISTS', subscribers) == 0 then return false end
  redis.call('HSET', fanout, 'trimmed', text(now))
  return true
end

-- Drops what every subscriber has processed, and what is too old even if a subscriber wants it.
local function trim(stream, cursors, records, max_age)
  local slowest = redis.call('ZRANGE', cursors, 0, 0)[1]
  local record = slowest and redis.call('HGET', records, slowest)
  if record then
    local cursor = parse_record(record).cursor
    -- A cursor beyond the end belongs to a stream that is no more: what this one has is unread.
    local ends = tonumber(string.match(last_id(stream), '^%d+'))
    if tonumber(string.match(cursor, '^%d+')) <= ends then redis.call('XTRIM', stream, 'MINID', '~', cursor) end
  end
  if max_age ~= '0' then redis.call('XTRIM', stream, 'MINID', '~', text(now_ms() - max_age)) end
end
