#!lua
-- Puts messages into one queue, all of them or none: those that are due at once, and live as long as the queue. `producer` is one of
-- this call alone, whose messages are numbered from 1.
-- KEYS  1 meta (hash)  2 queue (zset)  3 message (prefix of a hash)  4 wakeup (zset)  5 producer (string)
-- ARGV  1 number of the last message  2 dedup window (ms)
--       3 id of the record that the messages depend on ('' = none), then per message, in the order of their numbers:
--       payload, rank (0-255, 0 first)
-- Returns the tags; 'NOQUEUE' where the queue has no record, 'REDECLARED' where it has another one than the messages depend on,
-- 'ONE_BY_ONE' where it has what only `publish` or `publish_bounded` heeds: limits, events, times to live, groups, differing consumers;
-- or where a retry of these messages has been here (nothing is written then).
-- No allow-oom: a full server refuses it before it writes anything.
-- Bound: the messages that are given.
-- @include now
-- @include tag

local record = redis.call('HMGET', KEYS[1],
  'id', 'ttl', 'message_ttl', 'limited', 'event_log', 'wakeup', 'quiet', 'ageing', 'groups', 'published', 'newest')
if not record[1] then return 'NOQUEUE' end
if ARGV[3] ~= '' and ARGV[3] ~= record[1] then return 'REDECLARED' end
for field = 2, 9 do
  if record[field] then return 'ONE_BY_ONE' end
end
local last = redis.call('GET', KEYS[5])
if last and string.sub(last, 1, 1) == 'F' then return 'ONE_BY_ONE' end

local FIRST = 4
local count = (#ARGV - FIRST + 1) / 2
local time, published = newest_of(record[11], now_ms()), tonumber(record[10] or 0)
local tags, places = {}, {}
for i = 1, count do
  tags[i] = new_tag(time, published + i, '.', record[1])
  places[2 * i - 1], places[2 * i] = ARGV[FIRST + 2 * i - 1] * PRIORITY_BAND + time, tags[i]
end

redis.call('HSET', KEYS[1], 'published', published + count, 'newest', time)
local function store()
  -- Their places come first: a script that meets a tag without a message drops it, and a message without a place would stay for ever.
  redis.call('ZADD', KEYS[2], unpack(places))
  for i = 1, count do redis.call('HSET', KEYS[3] .. tags[i], 'payload', ARGV[FIRST + 2 * i - 2]) end
  redis.call('ZADD', KEYS[4], 0, 'work')
  redis.call('SET', KEYS[5], ARGV[1], 'PX', ARGV[2])
end

-- All of them or none: a retry sends the messages one by one, and knows them by their numbers.
local fine, failure = pcall(store)
if fine then return tags end
redis.call('HINCRBY', KEYS[1], 'published', -count)
for i = 1, count do redis.call('UNLINK', KEYS[3] .. tags[i]) end
redis.call('ZREM', KEYS[2], unpack(tags))
return error(failure, 0)
