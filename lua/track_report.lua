#!lua flags=allow-oom
-- Notes what a recipient of a tracked delivery has answered; the last final answer resolves the delivery.
-- KEYS  1 track (hash)  2 track_events (stream)
-- ARGV  1 recipient  2 outcome (queued, delivered, or a final one: include/track.lua)  3 tag of its message ('' = none)
-- Returns 1 where this was news, 0 where the recipient is none, or has given its final answer.
-- Bound: a fixed number of commands.
-- @include now
-- @include track
local field = 'to:' .. ARGV[1]
local known = redis.call('HGET', KEYS[1], field)
if not known then return 0 end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'tag:' .. ARGV[1], ARGV[3]) end
if FINAL[known] or ARGV[2] == 'queued' or known == ARGV[2] then return 0 end
report_outcome(KEYS[1], KEYS[2], ARGV[1], ARGV[2], now_ms)
return 1
