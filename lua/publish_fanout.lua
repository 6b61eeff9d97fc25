#!lua
-- Appends one broadcast to its exchange's stream, once, however often its publisher retries.
-- KEYS  1 stream (stream)  2 fanout (hash)  3 producer (string)  4 cursors (zset, read)
-- ARGV  1 payload  2 routing key  3 identity (producer.number)  4 entries to keep (about)  5 number of the message on its connection
--       6 retry (0/1)  7 dedup window (ms)  8 age up to which entries are kept (ms; 0 = any)
--       9 where nobody subscribes: 0 = say so, 1 = only count, 2 = say so and write nothing
-- Returns the entry's id, or '' for a duplicate; 'NOBODY' where nobody subscribes. It is appended all the same: the register of
-- subscribers may have been lost, and a reader that goes on then misses nothing.
-- The entry's head starts with its number in the stream: a reader that misses one knows how many it missed.
-- @include idempotent_publish
-- @include now
-- @include text
-- Bytes; readers ask for the number of the last larger one (`broker/fanout/reader.py`), and how large they get, before they read many.
local LARGE = 16384
local nobody = redis.call('EXISTS', KEYS[4]) == 0
if nobody and ARGV[9] == '2' then
  if ARGV[6] == '1' then
    fence_producer(KEYS[3], ARGV[7])
    if was_stored(KEYS[3], ARGV[5]) then return '' end
  end
  redis.call('HINCRBY', KEYS[2], 'unroutable', 1)
  return 'NOBODY'
end
local accept_original = accept(KEYS[3], ARGV[5], ARGV[6] == '1', ARGV[7])
if not accept_original then return nobody and ARGV[9] == '0' and 'NOBODY' or '' end
if nobody then redis.call('HINCRBY', KEYS[2], 'unroutable', 1) end
local number = redis.call('HINCRBY', KEYS[2], 'count', 1)
if #ARGV[1] > LARGE then
  local largest = tonumber(redis.call('HGET', KEYS[2], 'largest') or 0)
  redis.call('HSET', KEYS[2], 'large', text(number), 'largest', text(math.max(largest, #ARGV[1])))
end
local head = text(number) .. ' ' .. ARGV[3] .. ' ' .. ARGV[2]
local id = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'head', head, 'payload', ARGV[1])
if type(id) == 'table' then
  -- Subscribers would miss the number.
  redis.call('HINCRBY', KEYS[2], 'count', -1)
  error(id)
end
remember_number(KEYS[3], ARGV[5], ARGV[6] == '1', ARGV[7])
if ARGV[8] ~= '0' and number % 100 == 0 then
  redis.call('XTRIM', KEYS[1], 'MINID', '~', text(now_ms() - ARGV[8]))
end
if nobody and ARGV[9] == '0' then return 'NOBODY' end
return id
