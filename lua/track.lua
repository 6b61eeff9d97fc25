#!lua
-- Begins to track a delivery: who shall answer, and until when.
-- KEYS  1 track (hash)  2 track_events (stream)
-- ARGV  1 ack timeout (ms)  2 how long the state is kept after it (ms)  3 description (text)  4 payload, for dead letters of
--       recipients that have no queue of their own ('' = they have)  5.. recipients
-- Returns the deadline (ms since the epoch).
-- Bound: the recipients that are given.
-- @include now
-- @include track
local now = now_ms()
local deadline = now + ARGV[1]
redis.call('HSET', KEYS[1], 'began', text(now), 'deadline', text(deadline), 'about', ARGV[3], 'open', #ARGV - 4)
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'payload', ARGV[4]) end
for i = 5, #ARGV do redis.call('HSET', KEYS[1], 'to:' .. ARGV[i], 'pending') end
redis.call('XADD', KEYS[2], '*', 'recipient', '', 'outcome', 'began')
if #ARGV == 4 then resolve(KEYS[1], KEYS[2], now) end
redis.call('PEXPIRE', KEYS[1], ARGV[1] + ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[1] + ARGV[2])
return text(deadline)
