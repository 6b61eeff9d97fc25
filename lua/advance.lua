#!lua flags=allow-oom
-- Makes all that a queue holds older, as if that time had passed: for tests of applications (celery_redis_plus/testing). Leases stay:
-- a living consumer keeps its messages.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset, read)  4 message (prefix of a hash)  5 wakeup (zset, read)
--       6 meta (hash)  7 schedule_wakeup (zset, read)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
-- KEYS of its own  held (zset)  groups (zset)  limited (zset)  limited_until (zset)
-- ARGV  1 how much older (ms), then messages whose headers name a time: tag, envelope that takes the place of the stored one
-- Returns how many messages there are.
-- Bound: none: all messages of the queue. It is for tests of applications only.
-- @include beside
-- @include text
-- @include state_keys
-- @include limiters
local queue, ms = state_keys(0), tonumber(ARGV[1])

-- Moves the times in a record back that are set; 0 is none.
local function age_fields(key, ...)
  for _, name in ipairs({ ... }) do
    local value = tonumber(redis.call('HGET', key, name) or 0)
    if value > 0 then redis.call('HSET', key, name, text(value - ms)) end
  end
end

local function age_scores(place)
  local found = redis.call('ZRANGE', place, 0, -1, 'WITHSCORES')
  for i = 1, #found, 2 do redis.call('ZADD', place, text(math.max(0, found[i + 1] - ms)), found[i]) end
end

for i = 2, #ARGV, 2 do
  local hash = queue.message .. ARGV[i]
  local payload = redis.call('HGET', hash, 'payload')
  local body = payload and string.find(payload, '\n', 1, true)
  if payload then redis.call('HSET', hash, 'payload', ARGV[i + 1] .. (body and string.sub(payload, body) or '')) end
end
-- Their members among those of their groups name their places.
local held, members = beside(queue.meta, 'held'), beside(queue.meta, 'groups')
local found = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
for i = 1, #found, 2 do
  local place, group = found[i + 1], redis.call('HGET', queue.message .. found[i], 'group') or ''
  redis.call('ZREM', members, group .. '\0h' .. string.format('%016.0f', place) .. found[i])
  redis.call('ZADD', members, 0, group .. '\0h' .. string.format('%016.0f', place - ms) .. found[i])
end
local q = limiters().queue_of(queue.meta)
for _, member in ipairs(redis.call('ZRANGE', q.limited, 0, -1)) do
  local id = string.match(member, '^%Z*')
  local place, tag = tonumber(string.sub(member, #id + 2, #id + 17)), string.sub(member, #id + 18)
  redis.call('ZREM', q.limited, member)
  redis.call('ZADD', q.limited, 0, limiters().member_of(id, place - ms, tag))
end
age_scores(held)
age_scores(q.untils)
local messages = 0
for _, place in ipairs({ queue.ready, held, queue.delayed, queue.index, queue.dlx_outbox, queue.dead }) do
  for _, tag in ipairs(redis.call('ZRANGE', place, 0, -1)) do
    age_fields(queue.message .. tag, 'score', 'expires', 'died', 'waits_since')
    messages = messages + 1
  end
end
for _, place in ipairs({ queue.ready, queue.delayed, queue.expiry, queue.dlx_outbox, queue.dead }) do age_scores(place) end
age_fields(queue.meta, 'paused_at', 'paused_until', 'tokens_at', 'pacer_until')
return messages
