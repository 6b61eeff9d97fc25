#!lua
-- Appends one broadcast to its exchange's stream, once, however often its publisher retries.
-- KEYS  1 stream (stream)  2 fanout (hash)  3 producer (string)  4 cursors (zset, read)  5 exchanges (hash, read)
-- ARGV  1 payload  2 routing key  3 identity (producer.number)  4 entries to keep (about)  5 number of the message on its connection
--       6 retry (0/1)  7 dedup window (ms)  8 age up to which entries are kept (ms; 0 = any)
--       9 without subscribers: 0 = say so, 1 = only count, 2 = say so and write nothing
--       10 exchange  11 its record (text), as the publisher knows it
-- Returns the entry's id, or '' for a duplicate; 'NOBODY' without subscribers. It is appended all the same: the register of
-- subscribers may have been lost, and a reader that goes on then misses nothing. 'BOUNDED' where the exchange has limits, which
-- only `publish_fanout_bounded` heeds; 'REDECLARED' where the exchange has another record, or none (nothing is written then).
-- Bound: a fixed number of commands; the stream is trimmed by whole nodes.
-- @include append_broadcast
if redis.call('HGET', KEYS[5], ARGV[10]) ~= ARGV[11] then return 'REDECLARED' end
if (redis.call('HGET', KEYS[2], 'limited') or '') ~= '' then return 'BOUNDED' end
local nobody = redis.call('EXISTS', KEYS[4]) == 0
if ARGV[6] == '0' and not (nobody and ARGV[9] == '2') then
-- @include accept_original
  if nobody then redis.call('HINCRBY', KEYS[2], 'unroutable', 1) end
  local id = append_broadcast(KEYS[1], KEYS[2], ARGV[1], ARGV[3], ARGV[2], ARGV[4], ARGV[8])
  -- Remembered first, it would be lost at the retry if it could not be stored.
  local fine, new = pcall(accept_original, KEYS[3], ARGV[5], ARGV[7])
  if not fine or not new then
    redis.call('XDEL', KEYS[1], id)
    redis.call('HINCRBY', KEYS[2], 'count', -1)
    if nobody then redis.call('HINCRBY', KEYS[2], 'unroutable', -1) end
    if not fine then error(new, 0) end
    id = ''
  end
  return nobody and ARGV[9] == '0' and 'NOBODY' or id
end

-- A retry, or a mandatory one that nobody would get.
-- @include idempotent_publish
if nobody and ARGV[9] == '2' then
  if ARGV[6] == '1' then
    fence_producer(KEYS[3], ARGV[7])
    if was_stored(KEYS[3], ARGV[5]) then return '' end
  end
  redis.call('HINCRBY', KEYS[2], 'unroutable', 1)
  return 'NOBODY'
end
local new = accept(KEYS[3], ARGV[5], true, ARGV[7])
if not new then return nobody and ARGV[9] == '0' and 'NOBODY' or '' end
if nobody then redis.call('HINCRBY', KEYS[2], 'unroutable', 1) end
local id = append_broadcast(KEYS[1], KEYS[2], ARGV[1], ARGV[3], ARGV[2], ARGV[4], ARGV[8])
remember_number(KEYS[3], ARGV[5], true, ARGV[7])
return nobody and ARGV[9] == '0' and 'NOBODY' or id
