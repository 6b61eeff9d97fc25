#!lua flags=no-writes
-- Lists limiters that messages have asked for, with their keys: those first that were asked for first.
-- KEYS  1 limiters (zset)
-- KEYS of its own  limiter_bucket (string, read)  limiter_window (zset, read)  limiter_places (zset, read)  limiter_rules (hash, read)
--       limiter_queues (zset, read)  limited (zset, read)
-- ARGV  1 rank of the first  2 limiters at most
-- Returns { ARGV 1 of the next call ('' = done), now (ms), then per limiter: limiter with its key, rule of its messages, what was set for it
-- and for the limiter without its key (each as `limiter_rules` has it, '' = nothing), what is free, how many messages wait for it, in how
-- many queues }.
-- Bound: the limiters of ARGV 2, and 10 queues for each.
-- @include groups
local MOST_QUEUES = 10
local first, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local prefix = string.sub(KEYS[1], 1, -#'limiters' - 1)
local q = { prefix = prefix, only_looks = true }
local found = redis.call('ZRANGE', KEYS[1], first, first + count - 1)
local reply = { #found == count and text(first + count) or '', text(now_ms()) }
for _, member in ipairs(found) do
  local id, words = string.match(member, '^(%Z+)%z(.*)$')
  local name = id and string.match(id, '^[^:]+')
  local limiter = name and limiters().read(name .. ':' .. words .. (name ~= id and ' key=' .. string.sub(id, #name + 2) or ''))
  if limiter then
    local waiting, queues = 0, redis.call('ZRANGE', prefix .. 'limiter_queues', '[' .. id .. '\0', '(' .. id .. '\1', 'BYLEX', 'LIMIT', 0, MOST_QUEUES)
    for _, one in ipairs(queues) do
      local limited = prefix .. 'limited:' .. string.sub(one, #id + 2)
      waiting = waiting + redis.call('ZLEXCOUNT', limited, '[' .. id .. '\0', '(' .. id .. '\1')
    end
    local set = redis.call('HMGET', prefix .. 'limiter_rules', id, name)
    for _, part in ipairs({ id, words, set[1] or '', name ~= id and set[2] or '', string.format('%.3f', limiters().free_of(q, limiter)),
      waiting, #queues }) do
      reply[#reply + 1] = part
    end
  end
end
return reply
