#!lua flags=allow-oom
-- Sets a rule for a limiter in place of those of its messages, or lets nothing pass for a time; what waits for it is looked at again.
-- KEYS  1 limiter_rules (hash)
-- ARGV  1 the limiter, or behind a colon also a key  2 for how many ms nothing passes ('' = as it is)  3 its rule ('' = that of each message,
--       '-' = as it is)  4 limiters that may have one at most
-- Returns for how many ms nothing passes; -1 where too many have a rule, and nothing has changed.
-- Bound: the limiters that have a rule, and 1,000 entries of queues that have messages waiting.
-- @include groups
local prefix, id, most = string.sub(KEYS[1], 1, -#'limiter_rules' - 1), ARGV[1], tonumber(ARGV[4])
local MOST_QUEUES = 1000
local now = now_ms()
local from, till, words = string.match(redis.call('HGET', KEYS[1], id) or '', '^(%d+) (%d+) (.*)$')
-- What is over is forgotten.
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local ended = string.match(all[i + 1], '^%d+ (%d+) $')
  if ended and tonumber(ended) <= now then redis.call('HDEL', KEYS[1], all[i]) end
end
if not from and redis.call('HLEN', KEYS[1]) >= most then return -1 end
from, till, words = tonumber(from or 0), tonumber(till or 0), words or ''
if ARGV[2] ~= '' then from, till = now, now + ARGV[2] end
if ARGV[3] ~= '-' then words = ARGV[3] end
if till <= now then from, till = 0, 0 end
if till == 0 and words == '' then
  redis.call('HDEL', KEYS[1], id)
else
  redis.call('HSET', KEYS[1], id, text(from) .. ' ' .. text(till) .. ' ' .. words)
end
local looked_at = 0
local function look_again(first, last)
  for _, member in ipairs(redis.call('ZRANGE', prefix .. 'limiter_queues', first, last, 'BYLEX', 'LIMIT', 0, MOST_QUEUES - looked_at)) do
    local one, rest = string.match(member, '^(%Z+)%z(.*)$')
    redis.call('ZADD', prefix .. 'limited_until:' .. rest, text(now), one)
    redis.call('ZADD', prefix .. 'schedule_wakeup:' .. rest, 0, 'due')
    looked_at = looked_at + 1
  end
end
look_again('[' .. id .. '\0', '(' .. id .. '\1')
if not string.find(id, ':', 1, true) and looked_at < MOST_QUEUES then look_again('[' .. id .. ':', '(' .. id .. ';') end
return text(math.max(0, till - now))
