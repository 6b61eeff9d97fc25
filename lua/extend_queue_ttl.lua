#!lua flags=allow-oom
-- Keeps a transient queue that is in use: moves on the expiry of its record and of its other keys, which live much longer
-- (`declare.lua`). So each message has its turn only four times in its TTL, from one process: the first that asks then makes a pass
-- over them, a page a call, and the others go without. Whether the queue is transient, and for how long it lives, says its record:
-- it may have been deleted and declared again.
-- KEYS  1 meta (hash)  2 message (prefix of a hash)  3.. queue (zset), delayed (zset), messages_index (zset),
--       expiry (zset), dlx_outbox (zset), dead (zset), wakeup (zset), schedule_wakeup (zset), consumers (zset),
--       with_credit (zset)
-- KEYS of its own  held (zset)  limited (zset)  limited_until (zset)
-- ARGV  1 first entry of the page  2 entries a page  3 for how long the record lives at least (ms): a queue that is consumed lives as
--       long as its consumers count
-- Returns the first entry of the next page; 0 when all are done, or are not to be done yet, or the queue is a lasting one; -1 where
-- the queue is gone.
-- Bound: one page of each set of the queue.
-- @include beside
-- @include now
-- @include keys_ttl
-- The sets of messages among the keys. `expiry` has no message that `queue` has not.
local PLACES = { 3, 4, 5, 7, 8 }
local record = redis.call('HMGET', KEYS[1], 'id', 'expires', 'ttl', 'published', 'renewed', 'limiters')
local expires, ttl, renewed = record[2], record[3], record[5]
if not record[1] then return -1 end
if not expires then
  if not ttl then return 0 end
  -- An older release has declared it, and gave all keys the life of the record.
  expires, ttl, renewed = ttl, keys_ttl(ttl), nil
  redis.call('HSET', KEYS[1], 'expires', expires, 'ttl', ttl)
end
local life = math.max(expires, ARGV[3])
-- Others may consume it.
if redis.call('PTTL', KEYS[1]) < life then redis.call('PEXPIRE', KEYS[1], text(life)) end
-- A queue that nothing was ever published to has no other key, but what tells which of its consumers come first.
if not record[4] then
  redis.call('PEXPIRE', KEYS[12], ttl)
  return 0
end
local keys = { unpack(KEYS) }
if record[6] then
  for _, kind in ipairs({ 'held', 'limited', 'limited_until' }) do keys[#keys + 1] = beside(KEYS[1], kind) end
  PLACES[#PLACES + 1] = #KEYS + 1
end
local now = now_ms()
local first, count = tonumber(ARGV[1]), tonumber(ARGV[2])
if first == 0 then
  for i = 3, #keys do redis.call('PEXPIRE', keys[i], ttl) end
  if renewed and now - renewed < ttl / 4 then return 0 end
end
-- With each page: nobody else begins a pass while this one goes on, nor too soon after it. One that its process does not end is
-- followed by another in time.
redis.call('HSET', KEYS[1], 'renewed', text(now))
local full = false
for _, i in ipairs(PLACES) do
  if redis.call('TYPE', keys[i]).ok == 'zset' then
    -- From the end: what consumers take from the front does not shift these.
    local tags = redis.call('ZREVRANGE', keys[i], first, first + count - 1)
    for _, tag in ipairs(tags) do redis.call('PEXPIRE', KEYS[2] .. tag, ttl) end
    full = full or #tags == count
  end
end
return full and first + count or 0
