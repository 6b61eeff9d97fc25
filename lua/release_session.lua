#!lua flags=allow-oom
-- Puts back in place what the server says a broken session holds and the process does not know of: a claim whose reply was lost.
-- Pages go by deadline, not by rank: heartbeats move entries behind the page all the while, and never the ones that are looked for,
-- which no process knows of.
-- KEYS  1 queue (zset)  2 messages_index (zset)  3 message (prefix of a hash)  4 wakeup (zset)  5 expiry (zset)
--       6 schedule_wakeup (zset)  7 meta (hash)  8 delayed (zset)
-- ARGV  1 holder  2 place behind which the page begins, as include/place.lua has it ('' first)  3 entries a page, then the tags of the
--       queue that the process does hold
-- Returns { how many went back, ARGV 2 of the next page ('' = done) }.
-- Bound: the claimed messages of one page, and the tags that are given.
-- @include place
-- @include now
-- @include return_to_queue
-- @include damaged_message
-- @include log_event
-- @include notify
local queue = { ready = KEYS[1], message = KEYS[3], expiry = KEYS[5], schedule_wakeup = KEYS[6], meta = KEYS[7], delayed = KEYS[8] }
local ttl = redis.call('HGET', KEYS[7], 'ttl')
local known = {}
for i = 4, #ARGV do known[ARGV[i]] = true end
local page, reached = page_behind(KEYS[2], ARGV[2], tonumber(ARGV[3]))
local returned = 0
for i = 1, #page, 2 do
  local tag = page[i]
  local hash = KEYS[3] .. tag
  local fields = fields_of(hash, 'owner', 'score', 'expires')
  if fields[1] == ARGV[1] and fields[2] and not known[tag] then
    if contained(queue, tag, now_ms(), return_to_queue, queue, tag, fields[2], fields[3], ttl) ~= 'damaged' then
      redis.call('HDEL', hash, 'score', 'delay', 'owner')
      log_event(KEYS[7], tag, 'recovered', { reason = 'not_begun' })
    end
    redis.call('ZREM', KEYS[2], tag)
    returned = returned + 1
  end
end
if returned > 0 then notify(KEYS[4], KEYS[7]) end
return { returned, reached }
