#!lua flags=no-writes
-- Lists the subscribers of a fanout stream.
-- KEYS  1 stream (stream)  2 fanout (hash)  3 subscribers (zset: deadlines)  4 subscriber (hash)
-- ARGV  none
-- Returns { now (ms), newest id, broadcasts so far, id, deadline (ms; '' = none), record, ... }.
-- Bound: a few looks at each of the exchange's subscribers.
-- @include fanout
local reply = { text(now_ms()), last_id(KEYS[1]), text(broadcasts_so_far(KEYS[2])) }
local records = redis.call('HGETALL', KEYS[4])
for i = 1, #records, 2 do
  reply[#reply + 1] = records[i]
  reply[#reply + 1] = redis.call('ZSCORE', KEYS[3], records[i]) or ''
  reply[#reply + 1] = records[i + 1]
end
return reply
