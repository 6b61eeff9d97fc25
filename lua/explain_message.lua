#!lua flags=no-writes
-- Reads at one moment what decides when a message is delivered: its place, what stands before it, and its queue's rules.
-- KEYS  1 meta (hash)  2 queue (zset)  3 delayed (zset)  4 messages_index (zset)  5 message (prefix of a hash)  6 dlx_outbox (zset)
--       7 dead (zset)  8 consumers (zset)  9 consumer (prefix of a hash)  10 heartbeats (zset)
-- KEYS of its own  held (zset, read)  groups (zset, read)  limited (zset, read)  limited_until (zset, read)
-- ARGV  1 tag  2 how many fields of the message follow, then these, then fields of the queue's record
-- Returns { place, now (ms), its score there, how many stand before it there, how many of these have a higher priority, ready, delayed,
-- unacked, live consumers, live processes, its group ('' = none, or its queue has none), messages of it that are held before this one, how many
-- of it are admitted, its limiter as the message names it ('' = it does not wait for one), when that is looked at again (ms), messages of the
-- queue that wait for it before this one, then those fields }, numbers as text, '' for what there is not; place: 'ready', 'delayed',
-- 'held' (by its group), 'limited' (it waits for its limiter), 'claimed', 'forwarded', 'dead', or '' where it is gone. Of a queue whose messages age, no priority is higher than another.
-- Bound: a fixed number of commands, and two looks at each of the queue's consumers.
-- @include beside
-- @include now
-- @include message
-- @include living
-- @include ageing
-- @include limiters
-- A process whose heartbeat is overdue by more may be dead.
local ALIVE_MS = 60000
local tag, fields = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
local place, score, key = '', false, nil
for i, name in ipairs({ 'ready', 'delayed', 'claimed', '', 'forwarded', 'dead' }) do
  if not score and i ~= 4 then
    key = KEYS[1 + i]
    score = redis.call('ZSCORE', key, tag)
    if score then place = name end
  end
end
local before, higher = '', ''
if score then
  before = text(redis.call('ZRANK', key, tag))
  if place == 'ready' and redis.call('HEXISTS', KEYS[1], 'ageing') == 0 then
    higher = text(redis.call('ZCOUNT', key, '-inf', '(' .. text(rank_of(tonumber(score)) * PRIORITY_BAND)))
  end
end
local group, held_before, admitted = '', '', ''
local limiter, limited_until, limited_before = '', '', ''
local limits = not score and limiters().holds(KEYS[1], tag)
if limits then
  local q = limiters().queue_of(KEYS[1])
  place, score = 'limited', redis.call('ZSCORE', q.held, tag)
  before = text(redis.call('ZCARD', KEYS[2]) + redis.call('ZRANK', q.held, tag))
  limiter, limited_until = redis.call('HGET', KEYS[5] .. tag, 'limiter'), redis.call('ZSCORE', q.untils, limits.id) or ''
  local own = limiters().member_of(limits.id, tonumber(score), tag)
  limited_before = text(redis.call('ZLEXCOUNT', q.limited, '[' .. limits.id .. '\0', '(' .. own))
end
if redis.call('HEXISTS', KEYS[1], 'groups') == 1 then
  local held, members = beside(KEYS[1], 'held'), beside(KEYS[1], 'groups')
  group = fields_of(KEYS[5] .. tag, 'group')[1] or ''
  local at = not score and redis.call('ZSCORE', held, tag)
  if at then
    place, score = 'held', at
    before = text(redis.call('ZCARD', KEYS[2]) + redis.call('ZRANK', held, tag))
    local own = group .. '\0h' .. string.format('%016.0f', at) .. tag
    held_before = text(redis.call('ZLEXCOUNT', members, '[' .. group .. '\0h', '(' .. own))
  end
  if group ~= '' then admitted = text(redis.call('ZLEXCOUNT', members, '[' .. group .. '\0r', '(' .. group .. '\0v')) end
end
local reply = {
  place, text(now), score or '', before, higher, text(redis.call('ZCARD', KEYS[2])), text(redis.call('ZCARD', KEYS[3])),
  text(redis.call('ZCARD', KEYS[4])), text(#living(KEYS[8], KEYS[9], KEYS[10])),
  text(redis.call('ZCOUNT', KEYS[10], text(now - ALIVE_MS), '+inf')), group, held_before, admitted,
  limiter, limited_until, limited_before,
}
local function add(found, count)
  for i = 1, count do reply[#reply + 1] = found[i] or '' end
end
add(fields_of(KEYS[5] .. tag, unpack(ARGV, 3, 2 + fields)), fields)
add(redis.call('HMGET', KEYS[1], unpack(ARGV, 3 + fields)), #ARGV - 2 - fields)
return reply
