#!lua
-- Appends one broadcast to its exchange's stream, once, however often its publisher retries.
-- KEYS  1 stream  2 pub of this producer (string)
-- ARGV  1 payload  2 routing key  3 uuid  4 entries to keep (about)  5 number of the message on its connection  6 retry (0/1)
--       7 dedup window (ms)
-- Returns the entry's id, or '' for a duplicate.
-- @include once
if not first_time(KEYS[2], ARGV[5], ARGV[6] == '1', ARGV[7]) then return '' end
return redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'uuid', ARGV[3], 'routing_key', ARGV[2], 'payload', ARGV[1])
