#!lua flags=allow-oom
-- Has publishers wait no longer for the subscribers of a lost process, a page by deadline: the process sends no heartbeats that would move
-- its subscribers to another page. Their positions stay until their time is over: a reader that comes back goes on there.
-- KEYS  1 stream (stream, read)  2 fanout (hash, read)  3 subscribers (zset: deadlines, read)  4 cursors (zset, read)
--       5 subscriber (hash)  6 waiting_publishers (zset)
-- ARGV  1 place behind which the page begins, as include/place.lua has it ('' first)  2 entries a page  3 process
-- Returns { how many there were, ARGV 1 of the next page ('' = done) }.
-- Bound: the subscribers of one page, and 100 waiting publishers.
-- @include fanout
-- @include place
local page, reached = page_behind(KEYS[3], ARGV[1], tonumber(ARGV[2]))
local found = 0
for i = 1, #page, 2 do
  local stored = redis.call('HGET', KEYS[5], page[i])
  local record = stored and parse_record(stored)
  if record and string.match(record.label, '/(.*)$') == ARGV[3] then
    record.state = 'suspect'
    redis.call('HSET', KEYS[5], page[i], format_record(record))
    found = found + 1
  end
end
if found > 0 and redis.call('EXISTS', KEYS[6]) == 1 then
-- @include wake_publishers
  wake_publishers(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], now_ms())
end
return { found, reached }
