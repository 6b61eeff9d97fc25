-- @include now
-- @include text

-- A subscriber's record is text: cursor, number of the cursor's entry, since (ms), timeout (ms), state, label.
-- States: bound (nobody reads yet), live, suspect (overdue once), left (a durable one whose reader went in order).

local function parse_record(record)
  local cursor, number, since, timeout, state, label = string.match(record, '^(%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  return { cursor = cursor, number = tonumber(number), since = since, timeout = timeout, state = state, label = label }
end

local function format_record(r)
  return table.concat({ r.cursor, text(r.number), r.since, r.timeout, r.state, r.label }, ' ')
end

-- The newest id that the stream has given out; it outlives the entry.
local function last_id(stream)
  if redis.call('EXISTS', stream) == 0 then return '0-0' end
  local info = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

local function broadcasts_so_far(fanout)
  return tonumber(redis.call('HGET', fanout, 'count') or 0)
end

-- Drops what every subscriber has processed, and what is too old whoever still wants it.
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
