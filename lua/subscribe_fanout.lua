#!lua flags=allow-oom
-- Registers a subscriber of a fanout stream, from the stream's end on; a durable one resumes where it was.
-- KEYS  1 stream (stream)  2 fanout (hash)  3 subscribers (zset: deadlines)  4 cursors (zset)  5 subscriber (hash)
-- ARGV  1 id  2 timeout (ms)  3 label  4 id of the durable subscriber it reads for, or ''
-- Returns { cursor, number of its entry, up to which id entries may have been delivered before ('' = none) }.
-- Bound: a fixed number of commands.
-- @include fanout
local now = now_ms()
local doubt = ''
keep_for_subscriber(KEYS[1], KEYS[2])
local stored = ARGV[4] ~= '' and redis.call('HGET', KEYS[5], ARGV[4])
local record
if stored then
  record = parse_record(stored)
  -- Its last reader did not say goodbye: it may have seen more than it has told.
  if record.state ~= 'left' then doubt = last_id(KEYS[1]) end
else
  record = { cursor = last_id(KEYS[1]), number = broadcasts_so_far(KEYS[2]), since = text(now), label = ARGV[3] }
end
record.timeout = ARGV[2]
record.state = 'bound'
if ARGV[4] ~= '' and not stored then
  record.state = 'left'
  redis.call('HSET', KEYS[5], ARGV[4], format_record(record))
  redis.call('ZADD', KEYS[4], text(record.number), ARGV[4])
  record.state = 'bound'
end
-- The durable subscriber has counted what its readers did before; this one begins at nothing.
record.label, record.since, record.counts = ARGV[3], text(now), nil
-- Its deadline first: what has one is found by `reap_subscribers`.
redis.call('ZADD', KEYS[3], text(now + ARGV[2]), ARGV[1])
redis.call('HSET', KEYS[5], ARGV[1], format_record(record))
redis.call('ZADD', KEYS[4], text(record.number), ARGV[1])
return { record.cursor, text(record.number), doubt }
