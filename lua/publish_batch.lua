#!lua
-- Puts messages into one queue, all of them or none, but for those that another message stands for: messages that are due at once, and
-- live as long as the queue. `producer` is one of this call alone, whose messages are numbered from 1.
-- KEYS  1 meta (hash)  2 queue (zset)  3 message (prefix of a hash)  4 wakeup (zset)  5 producer (string)
-- ARGV  1 number of the last message  2 dedup window (ms)
--       3 id of the record that the messages depend on ('' = none), then per message, in the order of their numbers:
--       payload, rank (0-255, 0 first), its deduplication ('' = none; one that neither replaces nor retries, see
--       include/deduplication), its description, for queues whose events are written ('' = not made)
-- Returns per message its tag, or 'DUPLICATE ', the tag of the message that stands for it and its task's id; 'NOQUEUE' where the queue
-- has no record, 'REDECLARED' where it has another one than the messages depend on, 'NEED_METADATA' where it wants descriptions,
-- 'ONE_BY_ONE' where it has what only `publish` or `publish_bounded` heeds: limits, times to live, groups, differing consumers; or
-- where a retry of these messages has been here (nothing is written then).
-- No allow-oom: a full server refuses it before it writes anything.
-- Bound: the messages that are given.
-- @include now
-- @include tag
-- @include deduplication
-- @include log_event

local record = redis.call('HMGET', KEYS[1],
  'id', 'event_log', 'ttl', 'message_ttl', 'limited', 'wakeup', 'quiet', 'ageing', 'groups', 'published', 'newest')
if not record[1] then return 'NOQUEUE' end
if ARGV[3] ~= '' and ARGV[3] ~= record[1] then return 'REDECLARED' end
for field = 3, 9 do
  if record[field] then return 'ONE_BY_ONE' end
end
local last = redis.call('GET', KEYS[5])
if last and string.sub(last, 1, 1) == 'F' then return 'ONE_BY_ONE' end

local FIRST, OF_EACH = 4, 4
local PAYLOAD, RANK, DEDUPLICATION, DESCRIPTION = 0, 1, 2, 3
local count = (#ARGV - FIRST + 1) / OF_EACH
local function argument(i, which)
  return ARGV[FIRST + (i - 1) * OF_EACH + which]
end

local log = false
if record[2] then
  if argument(1, DESCRIPTION) == '' then return 'NEED_METADATA' end
  log = log_of(KEYS[1], record[2])
end

local time, published = newest_of(record[11], now_ms()), tonumber(record[10] or 0)
-- The messages that are stored: their numbers, tags and places. The task and tag that stand for an id from here on, by its key.
local stored, tags, places, standing, replies = {}, {}, {}, {}, {}
for i = 1, count do
  local dedup, duplicate = argument(i, DEDUPLICATION), false
  local _, task, key
  if dedup ~= '' then
    _, _, task, key = parts_of(dedup)
    duplicate = standing[key] or duplicate_of(dedup, KEYS[3])
  end
  if duplicate then
    replies[i] = 'DUPLICATE ' .. duplicate
  else
    local nth = #stored + 1
    local tag = new_tag(time, published + nth, mark_of(false, log and is_sampled(published + nth, log.permille)), record[1])
    stored[nth], tags[nth], replies[i] = i, tag, tag
    places[2 * nth - 1], places[2 * nth] = argument(i, RANK) * PRIORITY_BAND + time, tag
    if key then standing[key] = tag .. ' ' .. task end
  end
end
if #stored == 0 then return replies end

redis.call('HSET', KEYS[1], 'published', published + #stored, 'newest', time)
local function store()
  -- Their places come first: a script that meets a tag without a message drops it, and a message without a place would stay for ever.
  redis.call('ZADD', KEYS[2], unpack(places))
  for nth, i in ipairs(stored) do redis.call('HSET', KEYS[3] .. tags[nth], 'payload', argument(i, PAYLOAD)) end
  redis.call('ZADD', KEYS[4], 0, 'work')
  for nth, i in ipairs(stored) do
    local dedup = argument(i, DEDUPLICATION)
    if dedup ~= '' then remember_duplicate(dedup, tags[nth], KEYS[3], '+0') end
  end
  -- Last, so that what is remembered is stored. The number of a duplicate is none that was stored: its retry is a duplicate again.
  if #stored == count then
    redis.call('SET', KEYS[5], ARGV[1], 'PX', ARGV[2])
  else
    for _, i in ipairs(stored) do redis.call('SET', KEYS[5] .. ':' .. i, 1, 'PX', ARGV[2]) end
  end
end

-- All of them or none: a retry sends the messages one by one, and knows them by their numbers.
local fine, failure = pcall(store)
if not fine then
  redis.call('HINCRBY', KEYS[1], 'published', -#stored)
  for nth, i in ipairs(stored) do
    redis.call('UNLINK', KEYS[3] .. tags[nth])
    redis.call('UNLINK', KEYS[5] .. ':' .. i)
  end
  for key in pairs(standing) do redis.call('UNLINK', key) end
  redis.call('ZREM', KEYS[2], unpack(tags))
  return error(failure, 0)
end
if log then
  for nth, i in ipairs(stored) do log_published(KEYS[1], tags[nth], argument(i, DESCRIPTION), argument(i, PAYLOAD), 0) end
end
return replies
