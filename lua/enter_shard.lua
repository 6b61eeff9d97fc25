#!lua flags=allow-oom
-- Stores messages that come with their queue from another shard, once each, however often it is called: each at the place, with the
-- tag and with all that is known of it there.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset, read)  4 message (prefix of a hash)  5 wakeup (zset)
--       6 meta (hash)  7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
--       12 moved_in (zset)
-- ARGV  1 until when it may run (ms since the epoch)  2 for how long the ids of finished moves are kept (ms), then for each message:
--       id of its move, tag, the set that it was in, its score there, how many texts follow, its fields and values
-- Returns how many were stored now; 'NOQUEUE' where the queue has no record, 'LATE' where it is too late: nothing has changed.
-- allow-oom: a full server has to take what was taken out of the old shard; else consumers would get nothing, and nothing would free memory.
-- Bound: the messages that are given.
-- @include now
-- @include state_keys
-- @include enqueue
local queue, moved_in, now = state_keys(0), KEYS[12], now_ms()
if now > tonumber(ARGV[1]) then return 'LATE' end
local record = redis.call('HMGET', queue.meta, unpack(RECORD))
if not record[1] then return 'NOQUEUE' end
redis.call('ZREMRANGEBYSCORE', moved_in, '-inf', now - ARGV[2])
local ttl = record[2]
local stored, waiting, ready, at = 0, 0, false, 3
while ARGV[at] do
  local id, tag, name, score, count = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  if not redis.call('ZSCORE', moved_in, id) then
    local hash, expires = queue.message .. tag, false
    -- The place first, then the hash: a tag without a message is dropped, a message without a place would stay for ever.
    local in_group = name == 'ready' and record[12] and is_grouped(tag)
    if not in_group then redis.call('ZADD', queue[name], score, tag) end
    for f = at + 5, at + 4 + count, 2 do
      redis.call('HSET', hash, ARGV[f], ARGV[f + 1])
      if ARGV[f] == 'expires' then expires = tonumber(ARGV[f + 1]) end
    end
    local group = in_group and groups().group_of(hash)
    if in_group and not group then
      redis.call('ZADD', queue.ready, score, tag)
    elseif group then
      groups().enter(queue.meta, tag, group, score, false, true)
    end
    if name == 'ready' then
      ready = true
      if expires then redis.call('ZADD', queue.expiry, text(expires), tag) end
      if expires and ttl then redis.call('PEXPIRE', queue.expiry, ttl) end
    end
    if ttl then
      redis.call('PEXPIRE', hash, ttl)
      redis.call('PEXPIRE', queue[name], ttl)
    end
    if name == 'delayed' then expires = tonumber(score) end
    if expires then notify_sweeper(queue.schedule_wakeup, ttl, record[3], expires, now) end
    if name == 'ready' or name == 'delayed' then
      waiting = waiting + 1
      if record[5] and is_bounded(tag) and limits_bytes(record[5]) then redis.call('HINCRBY', queue.meta, 'bytes', size_of(hash)) end
    end
    redis.call('ZADD', moved_in, '+inf', id)
    stored = stored + 1
  end
  at = at + 5 + count
end
if stored > 0 then redis.call('PERSIST', moved_in) end
-- Also where all are stored: the caller's WAIT, which may be a second one, waits for replicas to have what is written here.
redis.call('HINCRBY', queue.meta, 'published', waiting)
-- No consumer may take them now (paused, limits): who lifts that notifies.
if ready and not record[8] then redis.call('ZADD', record[7] or queue.wakeup, 0, 'work') end
return stored
