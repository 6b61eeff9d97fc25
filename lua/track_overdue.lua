#!lua flags=allow-oom
-- Asks who has not answered a tracked delivery in time; the asker then puts these messages to the dead letters.
-- KEYS  1 track (hash)
-- ARGV  1 asker  2 for how long no other process gets the same answer (ms)
-- Returns { ms until the deadline } before it, or while another asker is at work; { -1 } where it is resolved or unknown; else
-- { 0, description, payload, then per overdue recipient: name, tag ('' = none) }.
-- Bound: a few looks at each recipient of the delivery.
-- @include now
local now = now_ms()
local track = redis.call('HMGET', KEYS[1], 'deadline', 'resolved', 'about', 'payload', 'asker', 'asked', 'began')
if not track[1] or track[2] then return { -1 } end
local began = tonumber(track[7] or 0)
if began > now then
  -- The clock went back: no recipient has longer to answer than it was given.
  track[1] = string.format('%.0f', track[1] - began + now)
  redis.call('HSET', KEYS[1], 'began', string.format('%.0f', now), 'deadline', track[1])
end
if tonumber(track[1]) > now then return { track[1] - now } end
local asked = track[5] and track[5] ~= ARGV[1] and track[6] - now or 0
-- More than one has is of before a step of the clock back.
if asked > 0 and asked <= tonumber(ARGV[2]) then return { asked } end
redis.call('HSET', KEYS[1], 'asker', ARGV[1], 'asked', string.format('%.0f', now + ARGV[2]))
local reply = { 0, track[3], track[4] or '' }
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local recipient = string.match(fields[i], '^to:(.*)$')
  if recipient and (fields[i + 1] == 'pending' or fields[i + 1] == 'delivered') then
    reply[#reply + 1] = recipient
    reply[#reply + 1] = redis.call('HGET', KEYS[1], 'tag:' .. recipient) or ''
  end
end
return reply
