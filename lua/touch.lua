#!lua flags=allow-oom
-- Keeps a transient queue that is in use: moves on the expiry of its keys and of its messages, a page at a time.
-- KEYS  1 meta (hash)  2 message (prefix of a hash)  3.. the queue's other keys
-- ARGV  1 ttl (ms)  2 first entry of the page  3 entries a page
-- Returns the first entry of the next page; 0 when all are done; -1 where the queue is gone.
if redis.call('PEXPIRE', KEYS[1], ARGV[1]) == 0 then return -1 end
-- A queue that nothing was ever published to has no other key.
if redis.call('HEXISTS', KEYS[1], 'published') == 0 then return 0 end
local first, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local full = false
for i = 3, #KEYS do
  redis.call('PEXPIRE', KEYS[i], ARGV[1])
  if redis.call('TYPE', KEYS[i]).ok == 'zset' then
    -- From the end: what consumers take from the front does not shift these.
    local tags = redis.call('ZREVRANGE', KEYS[i], first, first + count - 1)
    for _, tag in ipairs(tags) do redis.call('PEXPIRE', KEYS[2] .. tag, ARGV[1]) end
    full = full or #tags == count
  end
end
return full and first + count or 0
