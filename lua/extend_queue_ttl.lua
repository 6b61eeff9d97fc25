#!lua flags=allow-oom
-- Keeps a transient queue that is in use: moves on the expiry of its keys and of its messages, a page at a time. Whether it is
-- transient, and for how long it lives, says its record: it may have been deleted and declared again.
-- KEYS  1 meta (hash)  2 message (prefix of a hash)  3.. queue (zset), delayed (zset), messages_index (zset),
--       expiry (zset), dlx_outbox (zset), dead (zset), wakeup (zset), schedule_wakeup (zset), consumers (zset),
--       with_credit (zset)
-- ARGV  1 first entry of the page  2 entries a page
-- Returns the first entry of the next page; 0 when all are done, or the queue is a lasting one; -1 where the queue is gone.
-- Bound: one page of each set of the queue.
local record = redis.call('HMGET', KEYS[1], 'id', 'ttl', 'published')
local ttl = record[2]
if not record[1] then return -1 end
if not ttl then return 0 end
redis.call('PEXPIRE', KEYS[1], ttl)
-- A queue that nothing was ever published to has no other key, but what tells which of its consumers come first.
if not record[3] then
  redis.call('PEXPIRE', KEYS[12], ttl)
  return 0
end
local first, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local full = false
for i = 3, #KEYS do
  redis.call('PEXPIRE', KEYS[i], ttl)
  if redis.call('TYPE', KEYS[i]).ok == 'zset' then
    -- From the end: what consumers take from the front does not shift these.
    local tags = redis.call('ZREVRANGE', KEYS[i], first, first + count - 1)
    for _, tag in ipairs(tags) do redis.call('PEXPIRE', KEYS[2] .. tag, ttl) end
    full = full or #tags == count
  end
end
return full and first + count or 0
