#!lua
-- Puts messages into one queue that come from another server: from kombu's own Redis transport, each once, however often it is called;
-- or from an AMQP broker, whose messages have no ids.
-- KEYS  1 meta (hash)  2 queue (zset)  3 delayed (zset)  4 message (prefix of a hash)  5 wakeup (zset)  6 schedule_wakeup (zset)
--       7 expiry (zset)  8 migrated (zset)  [9 message of a staged body (hash)]
-- ARGV  1 for how long ids are kept at most (ms), then for each message: 2 its id there, '' where it has none  3 payload  4 rank
--       5 eta (ms since the epoch, 0 = now)  6 expiry, as for publish  7 its description in the queue's events
-- Returns for each message 1, or 0 where it is stored already; 'NOQUEUE' where the queue has no record, and nothing has changed.
-- No allow-oom: a full server refuses it before it writes anything.
-- Bound: a fixed number of commands.
-- @include now
-- @include enqueue

local stored = {}
for i = 2, #ARGV, 6 do
  local record = redis.call('HMGET', KEYS[1], unpack(RECORD))
  if not record[1] then return 'NOQUEUE' end
  record.description = ARGV[i + 5]
  local id = ARGV[i]
  local new = id == '' or not redis.call('ZSCORE', KEYS[8], id)
  if new then
    -- Stored first: a script that fails between the two leaves the message twice, and loses none.
    enqueue(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], record, ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3],
      KEYS[9] or false, KEYS[7], ARGV[i + 4], false)
    if id ~= '' then redis.call('ZADD', KEYS[8], now_ms(), id) end
  end
  stored[#stored + 1] = new and 1 or 0
end
redis.call('PEXPIRE', KEYS[8], ARGV[1])
return stored
