#!lua flags=allow-oom
-- Takes messages of one queue that has rules for its consumers: a pause, a single active consumer, consumer priorities, limits.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 wakeup (zset)  6 meta (hash)
--       7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
--       12 consumers (zset)  13 consumer (prefix of a hash)  14 with_credit (zset)
--       15 heartbeats (zset, read)  16 leader (hash, read)
-- ARGV  1 how many messages at most  2 visibility timeout (ms)  3 holder  4 bytes of payload at most
--       5 consumer ('' = one that gets messages one at a time)  6 credit that it has in all  7 `activations` in the
--       last reply to it ('' = none)  8 delivery limit of queues without their own (-1 = none)  9 how many dead letters the queue
--       keeps at most  10 the worker's name, packed for events
--       of a filtered queue also: 11 the consumer's filter (include/match_headers.lua; '' = none)  12 whether all others shall
--       look as well (0/1)  13 where its last look has ended ('' = at the end of the queue)
-- Returns { 'state wait activations more ranked deaths', header, payload, ..., death, ... }: the last `deaths` entries are about
-- messages that died in a takeover, as return_to_queue.lua has them. wait: ms after which the consumer has to claim again (-1 = it
-- is woken); more: 1 = there is work left, or the consumer has to claim when it has credit again; ranked: 1 = consumers have
-- priorities. A filtered queue adds where this look has ended ('-' = at the end of the queue). States:
--   ok; plain (it has no rules any more); paused; standby (another consumer is the active one, or has the queue alone);
--   outranked (one of a higher priority has credit); again (a takeover takes more calls, or all that the call came to had expired);
--   unknown (it is not on the list and has to join again); locked (the queue belongs to another connection: the consumer is off
--   the list); unfiltered (the consumer has a filter, and the queue was declared anew without `x-filtered`: it is off the list)
-- Bound: 500 ready messages that are taken or passed, of a filtered queue 100 that are looked at; in a takeover 500 claimed ones
--       instead. Where the active one is gone, also a look at each of the queue's consumers.
-- @include place
-- @include consumers
-- @include return_to_queue
-- @include damaged_message
-- @include claim_messages

local keys = consumer_keys(0)
local count, me, credit = math.min(tonumber(ARGV[1]), MOST_LOOKED_AT), ARGV[5], tonumber(ARGV[6])
visibility, holder, bytes, worker = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[10]
now = now_ms()
deadline = text(now + visibility)
local function read_record()
  return redis.call('HMGET', keys.meta, 'restricted', 'paused', 'paused_until', 'sac', 'active', 'takeover', 'activations',
    'max_unacked', 'rate', 'burst', 'tokens', 'tokens_at', 'pacer', 'pacer_until', 'prioritised', 'exclusive', 'owner', 'paused_at',
    'filtered')
end
local record = read_record()
if not is_consistent(keys, { record[4], record[5], record[16] }) then
  update_consumers(keys)
  record = read_record()
end
local in_the_way = record[16] or (record[4] and record[5]) or me
if in_the_way ~= me and remove_dead(keys, now, { in_the_way }) then
  update_consumers(keys)
  record = read_record()
end
local activations = record[7] or '0'

local function answer(state, wait, more)
  local flags = (more and '1 ' or '0 ') .. (record[15] and '1 ' or '0 ')
  reply[1] = state .. ' ' .. text(wait) .. ' ' .. activations .. ' ' .. flags .. #deaths
  for _, part in ipairs(deaths) do reply[#reply + 1] = part end
  return reply
end

if record[2] then
  local left = tonumber(record[3]) - now
  local length = record[3] - (record[18] or now)
  if left > length then
    -- The clock went back: the pause does not become longer.
    left = length
    redis.call('HSET', keys.meta, 'paused_at', text(now), 'paused_until', text(now + length))
  end
  if left > -now and left <= 0 then
    redis.call('HDEL', keys.meta, 'paused', 'paused_at', 'paused_until', 'paused_by', 'quiet')
    notify_next(keys)
  else
    redis.call('HSET', keys.meta, 'quiet', 1)
    return answer('paused', left > 0 and left or -1, false)
  end
end
if record[17] and string.match(record[17], '^%S+') ~= holder then
  -- Its wake-up must wake the owner, not this one.
  if me ~= '' then
    remove_consumer(keys, me)
    update_consumers(keys)
  end
  return answer('locked', -1, false)
end
local filter = ARGV[11] or ''
-- A queue that is gone may come back with it.
if filter ~= '' and not record[19] and redis.call('HEXISTS', keys.meta, 'id') == 1 then
  remove_consumer(keys, me)
  update_consumers(keys)
  -- It may have taken the wake-up of those that stay.
  notify_next(keys)
  return answer('unfiltered', -1, false)
end
if record[16] and record[16] ~= me then return answer('standby', -1, false) end
if me ~= '' and not redis.call('ZSCORE', keys.consumers, me) then return answer('unknown', 0, true) end

-- Puts back what active consumers that died held: by their sessions, unless one of these has come back. What others hold (a
-- cancelled consumer that finishes its work) stays theirs. Returns whether that was all.
local function take_over()
  local dead = {}
  for session in string.gmatch(record[6], '%S+') do dead[session] = true end
  for _, id in ipairs(redis.call('ZRANGE', keys.consumers, 0, -1)) do dead[string.match(id, '^[^.]*')] = nil end
  local rules = redis.call('HMGET', keys.meta, unpack(FAILURE_RULES))
  -- What they held stays where it is: they send no heartbeats. A page a call, as of a plain claim.
  local page, reached = page_behind(keys.index, redis.call('HGET', keys.meta, 'takeover_at') or '', MOST_LOOKED_AT)
  local died = 0
  for i = 1, next(dead) and #page or 0, 2 do
    local tag = page[i]
    local fields = fields_of(keys.message .. tag, 'score', 'expires', 'owner')
    if fields[1] and dead[fields[3]] then
      local place = contained(keys, tag, now, return_lost, keys, rules, ARGV[8], tag, fields[1], fields[2], now)
      redis.call('ZREM', keys.index, tag)
      if place == 'dead' then died = died + 1 end
    end
  end
  if died > 0 then trim_dead(keys, tonumber(ARGV[9]), 0) end
  if reached ~= '' and next(dead) then
    redis.call('HSET', keys.meta, 'takeover_at', reached)
    return false
  end
  redis.call('HDEL', keys.meta, 'takeover', 'takeover_at')
  return true
end

if record[4] then
  if record[5] ~= me then return answer('standby', -1, false) end
  if record[6] and not take_over() then return answer('again', 0, true) end
  -- It was deposed and chosen again, and has not heard of either: what it has in its buffer is not its own any more.
  if activations ~= ARGV[7] then return answer('ok', 0, true) end
end

if record[19] or filter ~= '' then
-- @include match_headers
  local cursor = ARGV[13] or ''
  local chosen, reached = nil, ''
  if filter ~= '' then chosen, reached = look(keys, cjson.decode(filter), count, cursor) end
  local wanted = chosen and #chosen / 2 or count
  local taken, _, passed = 0, true, 0
  if wanted > 0 then
    taken, _, passed = claim_messages(1, wanted, keys.ready, keys.index, keys.message, keys.meta, keys.expiry, keys.delayed, chosen)
  end
  -- What the reply had no room for is met again.
  if chosen and passed < wanted then reached = cursor end
  local left = redis.call('EXISTS', keys.ready) == 1
  if left and ARGV[12] == '1' then
    -- Any of them may be the one that matches. Each has a wake-up of its own: who finds nothing wakes no other.
    for _, id in ipairs(redis.call('ZRANGE', keys.consumers, 0, -1)) do
      if id ~= me then redis.call('ZADD', keys.wakeup .. ':' .. id, 0, 'work') end
      keep_ttl(redis.call('HGET', keys.meta, 'ttl'), keys.wakeup .. ':' .. id)
    end
  end
  answer('ok', -1, left and (reached ~= '' or passed < wanted or taken >= count))
  reply[1] = reply[1] .. ' ' .. (reached == '' and '-' or reached)
  return reply
end

-- The active consumer of a queue with one is outranked by nobody.
if record[15] and me ~= '' and not record[4] then
  local mine = tonumber(redis.call('HGET', keys.consumer .. me, 'priority') or 0)
  redis.call('ZADD', keys.with_credit, mine, me)
  local _, highest = first_with_credit(keys)
  if tonumber(highest) > mine then
    local wakeup = update_wakeup_target(keys)
    if redis.call('EXISTS', keys.ready) == 0 then return answer('outranked', -1, false) end
    -- Those of a higher priority have credit. If none of them takes what it was woken for, it is blocked, and we go on.
    local stalled = tonumber(redis.call('HGET', keys.meta, 'stalled') or 0)
    local heard = redis.call('ZADD', wakeup, 0, 'work') == 1
    if heard or stalled == 0 or stalled > now then
      redis.call('HSET', keys.meta, 'stalled', text(now))
      return answer('outranked', 1000, false)
    elseif now - stalled < 900 then
      return answer('outranked', 1000 - (now - stalled), false)
    end
  else
    redis.call('HDEL', keys.meta, 'stalled')
  end
end

local max_unacked, rate = tonumber(record[8]), tonumber(record[9])
local unacked = max_unacked and redis.call('ZCARD', keys.index)
local tokens
if max_unacked then count = math.min(count, max_unacked - unacked) end
if rate then
  local burst = tonumber(record[10])
  tokens = math.min(burst, (tonumber(record[11]) or burst) + math.max(0, now - (tonumber(record[12]) or now)) * rate / 1000)
  -- A millionth is what adding up fractions may lose.
  count = math.min(count, math.floor(tokens + 1e-6))
end
local taken, room = 0, MOST_LOOKED_AT
while taken < count and bytes > 0 and room > 0 do
  local claimed, drained, passed =
    claim_messages(1, math.min(count - taken, room), keys.ready, keys.index, keys.message, keys.meta, keys.expiry, keys.delayed)
  taken, room = taken + claimed, room - passed
  if drained then break end
end
-- What follows from that for wake-ups, limits and rules; returns the answer.
local function conclude()
  local left = redis.call('EXISTS', keys.ready) == 1
  local full = max_unacked and unacked + taken >= max_unacked
  local exhausted = credit - taken <= 0
  local wait, quiet = -1, full
  if rate then
    -- A worker revokes those that expired, and does not run them.
    tokens = tokens - (taken - expired_tasks)
    redis.call('HSET', keys.meta, 'tokens', string.format('%.6f', tokens), 'tokens_at', text(now))
    if left and tokens < 1 and not full then
      -- One consumer comes back for the next token; no other is woken before.
      local pacer = record[13]
      if exhausted or me == '' then
        if pacer == me then pacer = nil end
      elseif not pacer or pacer == me or tonumber(record[14]) < now then
        pacer = me
        wait = math.ceil((1 - tokens) * 1000 / rate)
        redis.call('HSET', keys.meta, 'pacer', me, 'pacer_until', text(now + wait + 1000))
      end
      quiet = pacer and (pacer == me or tonumber(record[14]) >= now)
      if not pacer then redis.call('HDEL', keys.meta, 'pacer', 'pacer_until') end
    elseif record[13] == me then
      redis.call('HDEL', keys.meta, 'pacer', 'pacer_until')
    end
  end
  if record[15] and me ~= '' and exhausted then redis.call('ZREM', keys.with_credit, me) end
  local wakeup = update_wakeup_target(keys)
  if quiet then redis.call('HSET', keys.meta, 'quiet', 1) else redis.call('HDEL', keys.meta, 'quiet') end
  if left and not quiet then
    redis.call('ZADD', wakeup, 0, 'work')
  else
    redis.call('DEL', wakeup)
  end
  -- The first that can be taken may stand behind what has expired.
  if left and taken == 0 and room <= 0 then return answer('again', 0, true) end
  local state = redis.call('HEXISTS', keys.meta, 'restricted') == 1 and 'ok' or 'plain'
  return answer(state, wait, (left and not quiet) or (record[15] and exhausted))
end

local concluded, reached = pcall(conclude)
if concluded then return reached end
-- A key of another type: what was taken is delivered; a call that can take nothing says why.
if taken == 0 then return error(reached, 0) end
return answer('ok', 1000, false)
