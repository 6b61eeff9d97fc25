#!lua
-- Puts a dead message of another broker into one queue, once, however often it is called: the first step of its move.
-- KEYS  1 meta (hash)  2 queue (zset)  3 delayed (zset)  4 message (prefix of a hash)  5 wakeup (zset)  6 schedule_wakeup (zset)
--       7 expiry (zset)  8 moved_in (zset)  [9 message of a staged body (hash)]
-- ARGV  1 id of the move  2 until when it may run (ms since the epoch)  3 payload  4 rank  5 expiry, as for publish
--       6 its description in the queue's events  7 for how long the ids of finished moves are kept (ms)
-- Returns 1, or 0 where it is stored already; 'NOQUEUE' where the queue has no record, 'LATE' where it is too late: nothing has changed.
-- No allow-oom: a full server refuses it before it writes anything.
-- Bound: a fixed number of commands.
-- @include now
-- @include enqueue
local now = now_ms()
if now > tonumber(ARGV[2]) then return 'LATE' end
local record = redis.call('HMGET', KEYS[1], unpack(RECORD))
if not record[1] then return 'NOQUEUE' end
record.description = ARGV[6]
redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now - tonumber(ARGV[7]))
if redis.call('ZSCORE', KEYS[8], ARGV[1]) then
  if KEYS[9] then redis.call('UNLINK', KEYS[9]) end
  -- The caller's WAIT, which may be a second one, waits for replicas to have what is written here.
  redis.call('HINCRBY', KEYS[1], 'published', 0)
  return 0
end
-- Stored first: a script that fails between the two leaves the message twice, and loses none.
enqueue(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], record, ARGV[3], tonumber(ARGV[4]), '0', KEYS[9] or false, KEYS[7],
  ARGV[5], false)
-- Until the move is finished, however long that takes.
redis.call('ZADD', KEYS[8], '+inf', ARGV[1])
redis.call('PERSIST', KEYS[8])
return 1
