#!lua flags=allow-oom
-- Notes how far subscribers of one fanout stream are, and that they live; then drops what all have processed.
-- KEYS  1 stream (stream)  2 fanout (hash)  3 subscribers (zset: deadlines)  4 cursors (zset)  5 subscriber (hash)
--       6 waiting_publishers (zset)
-- ARGV  1 age up to which entries are kept (ms; 0 = any), then per subscriber: id, timeout (ms), cursor, number of its entry,
--       label, id of the durable subscriber it reads for, or '', counts (`SubscriberCounts.encode`)
-- Returns { newest id of the stream, broadcasts so far }: a cursor beyond them means that the stream has gone back.
-- Publishers that wait for these subscribers are woken.
-- A record that is missing (flushed, or taken for dead meanwhile) is made anew.
-- Bound: the subscribers of the exchange, where the clock went back; else a fixed number of commands. The stream is trimmed by
--       whole nodes.
-- @include fanout
local now = now_ms()
-- The counts of a durable subscriber, with what its reader has counted since its last report.
local function added(sum, before, counts)
  local sums, old = {}, {}
  for value in string.gmatch(sum or '', '%d+') do sums[#sums + 1] = tonumber(value) end
  for value in string.gmatch(before or '', '%d+') do old[#old + 1] = tonumber(value) end
  local at = 0
  return (string.gsub(counts, '%d+', function(value)
    at = at + 1
    return text((sums[at] or 0) + math.max(0, value - (old[at] or 0)))
  end))
end
for i = 2, #ARGV, 7 do
  local id, timeout, cursor, number, label, durable, counts = unpack(ARGV, i, i + 6)
  local stored = redis.call('HGET', KEYS[5], id)
  if not stored then keep_for_subscriber(KEYS[1], KEYS[2]) end
  local record = stored and parse_record(stored) or { since = text(now) }
  record.cursor, record.number, record.timeout, record.label = cursor, tonumber(number), timeout, label
  record.state = 'live'
  local before
  before, record.counts = record.counts, counts
  redis.call('HSET', KEYS[5], id, format_record(record))
  redis.call('ZADD', KEYS[4], number, id)
  redis.call('ZADD', KEYS[3], text(now + timeout), id)
  if durable ~= '' then
    stored = redis.call('HGET', KEYS[5], durable)
    local kept = stored and parse_record(stored) or { since = text(now), number = -1 }
    -- Several processes may read for one durable subscriber: what one of them has processed, the subscriber has seen.
    if kept.number <= record.number then
      kept.cursor, kept.number, kept.label, kept.timeout = cursor, record.number, label, timeout
    end
    kept.state = 'live'
    kept.counts = added(kept.counts, before, counts)
    redis.call('HSET', KEYS[5], durable, format_record(kept))
    redis.call('ZADD', KEYS[4], text(kept.number), durable)
  end
end
-- Not once for each subscriber: one of them will do.
if trim_due(KEYS[2], KEYS[3], KEYS[5], now) then trim(KEYS[1], KEYS[4], KEYS[5], ARGV[1]) end
if redis.call('EXISTS', KEYS[6]) == 1 then
-- @include wake_publishers
  wake_publishers(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], now)
end
return { last_id(KEYS[1]), text(broadcasts_so_far(KEYS[2])) }
