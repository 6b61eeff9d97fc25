-- @include fanout

-- Whether publishers wait for a subscriber: for a durable one always, for others while their heartbeats are not overdue.
local function counts(subscribers, records, id, now)
  if string.sub(id, 1, 8) == 'durable.' then return true end
  local deadline = redis.call('ZSCORE', subscribers, id)
  if not deadline or tonumber(deadline) < now then return false end
  local record = redis.call('HGET', records, id)
  return not record or parse_record(record).state ~= 'suspect'
end

-- Returns id and number of the subscriber that counts and is furthest behind; nothing where there is none.
local function slowest_subscriber(cursors, subscribers, records, now)
  local first, page = 0, nil
  repeat
    page = redis.call('ZRANGE', cursors, first, first + 9, 'WITHSCORES')
    for i = 1, #page, 2 do
      if counts(subscribers, records, page[i], now) then return page[i], tonumber(page[i + 1]) end
    end
    first = first + 10
  until #page < 20
end

-- How many broadcasts after number `processed` the stream has.
local function unread(stream, count, processed)
  return math.min(count - processed, redis.call('XLEN', stream))
end
