#!lua flags=allow-oom
-- Removes a dead message that is stored in queues of other brokers by now: the second step of its move.
-- KEYS  1 dlx_outbox (zset) or dead (zset)  2 message (prefix of a hash)  3 meta (hash)
-- ARGV  1 tag  2 counter of the source's record that counts it  3 names of the targets, packed for events, with commas between them
-- Returns 1, or 0 where the message is no longer there.
-- Bound: a fixed number of commands.
-- @include log_event
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
log_event(KEYS[3], ARGV[1], 'moved', { target = ARGV[3] })
redis.call('UNLINK', KEYS[2] .. ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HINCRBY', KEYS[3], ARGV[2], 1)
return 1
