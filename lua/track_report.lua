#!lua flags=allow-oom
-- Notes what a recipient of a tracked delivery has answered; the last final answer resolves the delivery.
-- KEYS  1 track (hash)  2 track_events (stream)
-- ARGV  1 recipient  2 outcome (queued, delivered, acked, rejected, timed_out, refused, gone)  3 tag of its message ('' = none)
-- Returns 1 where this was news, 0 where the recipient is none, or has given its final answer.
-- @include now
-- @include track
local field = 'to:' .. ARGV[1]
local known = redis.call('HGET', KEYS[1], field)
if not known then return 0 end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'tag:' .. ARGV[1], ARGV[3]) end
if FINAL[known] or ARGV[2] == 'queued' or known == ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], field, ARGV[2])
redis.call('XADD', KEYS[2], '*', 'recipient', ARGV[1], 'outcome', ARGV[2])
if FINAL[ARGV[2]] and redis.call('HINCRBY', KEYS[1], 'open', -1) == 0 then resolve(KEYS[1], KEYS[2], now_ms()) end
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
return 1
