#!lua flags=allow-oom
-- Ends a subscription to a fanout stream in order. The durable subscriber that it read for keeps the cursor, unless it ends, too.
-- KEYS  1 subscribers (zset: deadlines)  2 cursors (zset)  3 subscriber (hash)
-- ARGV  1 id ('' = none)  2 cursor  3 number of its entry  4 id of the durable subscriber, or ''  5 forget the durable one (0/1)
-- Returns how many records are left; where that is none, no key is.
-- Bound: a fixed number of commands; the stream is trimmed by whole nodes.
-- @include fanout
if ARGV[1] ~= '' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[1])
  -- Its deadline last: what has one is found by `reap_subscribers`.
  redis.call('ZREM', KEYS[1], ARGV[1])
end
local durable = ARGV[4]
if durable ~= '' and ARGV[5] == '1' then
  redis.call('ZREM', KEYS[2], durable)
  redis.call('HDEL', KEYS[3], durable)
elseif durable ~= '' then
  local stored = redis.call('HGET', KEYS[3], durable)
  local reader = string.match(durable, '%..*$')
  for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    -- Another process still reads for it, and will say how far it is.
    if string.match(id, '%..*$') == reader then stored = false end
  end
  if stored then
    local record = parse_record(stored)
    if record.number <= tonumber(ARGV[3]) then
      record.cursor, record.number, record.state = ARGV[2], tonumber(ARGV[3]), 'left'
      redis.call('HSET', KEYS[3], durable, format_record(record))
      redis.call('ZADD', KEYS[2], text(record.number), durable)
    end
  end
end
return redis.call('HLEN', KEYS[3])
