#!lua flags=allow-oom
-- Removes subscribers of a fanout stream that gave no sign of life twice in a row, and drops broadcasts that no subscriber waits for.
-- KEYS  1 stream (stream)  2 fanout (hash)  3 subscribers (zset: deadlines)  4 cursors (zset)  5 subscriber (hash)  6 dead_subscribers (zset)
-- ARGV  1 age up to which entries are kept (ms; 0 = any)  2 second chance (ms)  3 how long deaths are remembered (ms)
--       4 report deaths since (ms, exclusive; '' = only those found now)  5 for how long stream and counters stay without a subscriber
--       (ms; 0 = for ever, and the stream for ARGV 1)
-- Returns { now, suspects, death, ... }: the server's time, how many are overdue for the first time, and the deaths since then, each as
-- 'time cursor number missed label id'; also those that another process has noticed.
-- Bound: a few looks at each of the exchange's subscribers that are overdue.
-- @include fanout
local now = now_ms()
local suspects = 0
trim_due(KEYS[2], KEYS[3], KEYS[5], now)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', text(now), 'LIMIT', 0, 500)) do
  local stored = redis.call('HGET', KEYS[5], id)
  local record = stored and parse_record(stored)
  if record and record.state == 'live' then
    -- Its second chance: a server that was away, or a machine that slept, makes everybody overdue at once.
    record.state = 'suspect'
    redis.call('HSET', KEYS[5], id, format_record(record))
    redis.call('ZADD', KEYS[3], text(now + ARGV[2]), id)
    suspects = suspects + 1
  else
    if record and record.state == 'suspect' then
      -- What a reader of a durable subscriber has not read, the next one will.
      local durable = 'durable' .. string.match(id, '%..*$')
      local missed = redis.call('HEXISTS', KEYS[5], durable) == 1 and 0 or broadcasts_so_far(KEYS[2]) - record.number
      redis.call('HINCRBY', KEYS[2], 'dead', 1)
      redis.call('HINCRBY', KEYS[2], 'missed', missed)
      redis.call('ZADD', KEYS[6], text(now),
        table.concat({ text(now), record.cursor, text(record.number), text(missed), record.label, id }, ' '))
    end
    redis.call('ZREM', KEYS[4], id)
    redis.call('HDEL', KEYS[5], id)
    redis.call('ZREM', KEYS[3], id)
  end
end
if redis.call('EXISTS', KEYS[1]) == 1 then trim(KEYS[1], KEYS[4], KEYS[5], ARGV[1]) end
-- Whoever subscribes again takes the end away. Limits are no counters: they stay.
if redis.call('EXISTS', KEYS[4]) == 0 then
  local stays = ARGV[5] ~= '0' and ARGV[5] or ARGV[1]
  if stays ~= '0' and redis.call('PTTL', KEYS[1]) == -1 then redis.call('PEXPIRE', KEYS[1], stays) end
  if ARGV[5] ~= '0' and redis.call('PTTL', KEYS[2]) == -1 and redis.call('HEXISTS', KEYS[2], 'limited') == 0 then
    redis.call('PEXPIRE', KEYS[2], ARGV[5])
  end
end
-- A look that was later than now was before a step of the clock back.
local since = ARGV[4]
if since == '' or tonumber(since) > now then since = text(now - 1) end
local reply = { text(now), suspects }
if redis.call('EXISTS', KEYS[6]) == 1 then
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', text(now - ARGV[3]))
  redis.call('ZREMRANGEBYRANK', KEYS[6], 0, -501)
  redis.call('PEXPIRE', KEYS[6], ARGV[3])
  for _, death in ipairs(redis.call('ZRANGEBYSCORE', KEYS[6], '(' .. since, '+inf')) do reply[#reply + 1] = death end
end
return reply
