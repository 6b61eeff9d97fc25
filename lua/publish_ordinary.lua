#!lua
-- Puts one message into one queue at its first try, as nearly all are: a message that is due at once and lives as long as its queue; a
-- queue that lasts, without events, limits, times to live and ageing. `publish` is for all others. No function is made that such a
-- message does not need.
-- KEYS  1 meta (hash)  2 queue (zset)  3 message (prefix of a hash)  4 wakeup (zset)  5 producer (string)  [6 binding (hash, read)]
-- ARGV  1 payload  2 rank (0-255, 0 first)  3 id of the record by whose arguments the queue is such a one
--       4 number of the message on its connection  5 dedup window (ms)  [6 version of the bindings that it was routed by]
-- Returns the tag; '' for one that its retry has overtaken; 'NOQUEUE' where the queue has no record, 'REDECLARED' where it has
-- another one, 'REROUTE' where the bindings have another version, 'NEED_METADATA' where its events are written (nothing is written
-- then).
-- No allow-oom: a full server refuses it before it writes anything.
-- Bound: a fixed number of commands.
-- @include now
-- @include new_tag

if KEYS[6] and (redis.call('HGET', KEYS[6], 'version') or '0') ~= ARGV[6] then return 'REROUTE' end
local record = redis.call('HMGET', KEYS[1], 'id', 'event_log', 'wakeup', 'quiet', 'published', 'newest')
if not record[1] then return 'NOQUEUE' end
if record[1] ~= ARGV[3] then return 'REDECLARED' end
if record[2] then return 'NEED_METADATA' end

local time, published = newest_of(record[6], now_ms()), tonumber(record[5] or 0) + 1
redis.call('HSET', KEYS[1], 'published', published, 'newest', time)
local tag = new_tag(time, published, '.', record[1])
-- Its place comes first: a script that meets a tag without a message drops it, and a message without a place would stay for ever.
redis.call('ZADD', KEYS[2], ARGV[2] * PRIORITY_BAND + time, tag)
redis.call('HSET', KEYS[3] .. tag, 'payload', ARGV[1])
-- No consumer may take it now (paused, limits of consumers): who lifts that notifies.
if not record[4] then redis.call('ZADD', record[3] or KEYS[4], 0, 'work') end

-- Remembered first, it would be lost at the retry if it could not be stored. As `accept_original`.
local last = redis.pcall('SET', KEYS[5], ARGV[4], 'PX', ARGV[5], 'GET')
local failed = type(last) == 'table'
if not last or (not failed and string.sub(last, 1, 1) ~= 'F' and tonumber(last) < tonumber(ARGV[4])) then return tag end
redis.call('UNLINK', KEYS[3] .. tag)
redis.call('ZREM', KEYS[2], tag)
redis.call('HINCRBY', KEYS[1], 'published', -1)
if failed then return last end
redis.call('SET', KEYS[5], last, 'PX', ARGV[5])
return ''
