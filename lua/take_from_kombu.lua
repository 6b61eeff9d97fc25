#!lua
-- Moves messages of kombu's own Redis transport into one queue. A message that kombu has no more is left out.
-- KEYS  1 meta (hash)  2 queue (zset)  3 delayed (zset)  4 message (prefix of a hash)  5 wakeup (zset)  6 schedule_wakeup (zset)
--       7 expiry (zset)  8 kombu's list  9 kombu's index of unacked messages  [10 message of a staged body (hash)]
-- ARGV  for each message: 1 its text in KEYS[8]: an element of a list, or a value of the hash of unacked messages  2 its delivery tag
--       there, '' where KEYS[8] is a list  3 payload  4 rank  5 eta (ms since the epoch, 0 = now)  6 expiry, as for publish
--       7 its description in the queue's events
-- Returns for each message 1, or 0 where kombu has it no more; 'NOQUEUE' where the queue has no record, and nothing has changed.
-- No allow-oom: a full server refuses it before it writes anything.
-- Bound: a fixed number of commands.
-- @include now
-- @include enqueue

-- How many elements at the tail of a list are searched: another process may have taken some of a page meanwhile.
local SEARCHED = 10000

local function is_there(text, delivery_tag)
  if delivery_tag ~= '' then return redis.call('HGET', KEYS[8], delivery_tag) == text end
  return redis.call('LINDEX', KEYS[8], -1) == text or redis.call('LPOS', KEYS[8], text, 'RANK', -1, 'MAXLEN', SEARCHED)
end

local function remove(text, delivery_tag)
  if delivery_tag == '' then return redis.call('LREM', KEYS[8], -1, text) end
  redis.call('ZREM', KEYS[9], delivery_tag)
  redis.call('HDEL', KEYS[8], delivery_tag)
end

local taken = {}
for i = 1, #ARGV, 7 do
  local text, delivery_tag = ARGV[i], ARGV[i + 1]
  local record = redis.call('HMGET', KEYS[1], unpack(RECORD))
  if not record[1] then return 'NOQUEUE' end
  record.description = ARGV[i + 6]
  local there = is_there(text, delivery_tag)
  if there then
    -- Stored first: a script that fails between the two leaves the message twice, and loses none.
    enqueue(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], record, ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4],
      KEYS[10] or false, KEYS[7], ARGV[i + 5], false)
    remove(text, delivery_tag)
  end
  taken[#taken + 1] = there and 1 or 0
end
return taken
