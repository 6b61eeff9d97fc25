#!lua flags=allow-oom
-- One pass over one queue or more: promotes what is due, expires what is overdue, recovers messages without a holder, bounds
-- the dead letters, empties the trash, notifies again.
-- KEYS  per queue: queue (zset), delayed (zset), messages_index (zset), message (prefix of a hash), wakeup (zset), meta (hash),
--       schedule_wakeup (zset), expiry (zset), dlx_outbox (zset), dead (zset), trash (zset)
-- ARGV  1 sweeper  2 lease (ms)  3 interval to the next pass at the latest (ms)  4 entries at most, of all queues together
--       5 take over (0/1): sweep even where another sweeper holds the lease  6 grace (ms): a gap since the last pass longer
--       than ARGV 7, or one in which the server was started, is an outage, and recovery waits this long after it
--       7 longest ordinary gap (ms); 2, 3, 6 and 7 follow from the sweeper's visibility timeout, and give way to what others need
--       that hold messages of the queue (include/timeouts.lua)
--       8 delivery limit of queues without their own (-1 = none)  9 how many dead letters a queue keeps at most
--       10 for how long (ms)  [11 visibility timeout (ms): after a step of the clock back no claim lasts longer]
-- Returns per queue: ms until the next pass (0 = at once, more is due), was it swept (0 = another has the lease, 2 = it is empty and
-- has no events, 3 = the call did not come to it), promoted, recovered, how many of these died at the delivery limit, expired, how many messages were discarded for want of a store, waiting for the dead-letter exchange, old dead letters removed,
-- events that a registered reader has not read and that the hard bound took, events that were not written for want of memory,
-- messages that claims have set aside since the last pass because their key holds no hash, why the first work of the pass failed that did
-- ('' = none; other messages, other kinds of work and other queues are served all the same), id of the queue's record ('' = it has none);
-- then the first messages that died at the delivery limit, as return_to_queue.lua has them
-- Bound: the entries of ARGV 4 over all queues and kinds; a queue that it did not come to, or that has more, is due at once. Besides
-- per queue: 40 dead letters that are looked at; over all queues 5,000 events that are trimmed (by whole nodes).
-- @include beside
-- @include now
-- @include uptime
-- @include message
-- @include state_keys
-- @include return_to_queue
-- @include damaged_message
-- @include expiry
-- @include trash_messages
-- @include trim_events
-- @include expired_task
-- @include rebase
-- @include timeouts
-- @include tend_groups
-- @include tend_limiters

local now = now_ms()
local lease, interval, room = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local take_over = ARGV[5] == '1'
local grace, longest_gap = tonumber(ARGV[6]), tonumber(ARGV[7])

-- A restart takes longer than this (ms): passes that follow sooner do not ask.
local SHORTEST_OUTAGE = 10

-- Longest interval between two heartbeats of a holder (ms), and their share of its visibility timeout: maintenance/lease_heartbeats.py.
local HEARTBEAT_MS, HEARTBEATS = 5000, 6

-- How a queue is swept whose messages are held with these visibility timeouts, as maintenance/sweeper.py has it for one: interval,
-- lease, longest ordinary gap, grace. The one with the shortest timeout is the first whose claims an unnoticed gap ends; that with
-- the longest is the last to send its heartbeat after it.
local function pace_of(shortest, longest)
  if not shortest then return interval, lease, longest_gap, grace end
  local margin = lease - interval
  local pause = math.min(interval, math.floor(shortest / HEARTBEATS))
  local gap = math.min(longest_gap, math.max(shortest / 3, (pause + margin) * 1.5))
  return pause, pause + margin, gap, math.max(grace, math.floor(2 * math.min(HEARTBEAT_MS, longest / HEARTBEATS)))
end

-- Tells whether holders may have been unable to send a heartbeat since the last pass: no sweep for `longest` ms, the clock went
-- back, or the server was started meanwhile. Several short outages in a row leave them as little time as a long one.
local function was_away(swept, longest)
  local gap = now - swept
  if gap > longest or gap < 0 then return true end
  if gap < SHORTEST_OUTAGE then return false end
  local up = up_for_ms()
  return up and up <= gap
end

-- The place of a Celery task that has expired: before all others, so that a worker comes to it next. It keeps its priority.
local HEAD = '0'
local function keep_rank(hash, score) redis.call('HSETNX', hash, 'rank', math.floor(score / PRIORITY_BAND)) end

-- How many entries the next kind of work may look at: half of what is left of the call, so that none keeps the others from theirs.
local function share_of_room()
  return math.max(1, math.ceil(room / 2))
end

-- Whether something was left for the next pass of the queue.
local unfinished

-- Notes that a kind of work has looked at `count` entries where it was allowed `limit`; returns `count`.
local function looked_at(count, limit)
  room = room - count
  unfinished = unfinished or count >= limit
  return count
end

-- Why the first work in the queue failed that did, '' where none has.
local failure

local function note_failure(raised)
  if failure == '' then failure = type(raised) == 'table' and raised.err or tostring(raised) end
end

-- Does one kind of work in a queue, which fails alone: a key of another type ends neither the pass nor the other kinds. Returns the first
-- three values that the work returns; 0, 0 where it fails.
local function alone(work, ...)
  local unfinished_before = unfinished
  local fine, first, second, third = pcall(work, ...)
  if fine then return first, second, third end
  note_failure(first)
  -- What it has left is not due at once: it would fail again.
  unfinished = unfinished_before
  return 0, 0
end

-- Deals with one message of `place` as `contained` does. Where that fails, the message stays, and is looked at again in the next pass:
-- those behind it go on. Returns what `work` returns, and 'failed' then.
local function attempt(queue, place, tag, work, ...)
  local fine, result, more = pcall(contained, queue, tag, now, work, ...)
  if fine then return result, more end
  note_failure(result)
  redis.call('ZADD', place, 'XX', text(now + interval), tag)
  return 'failed'
end

local function due_in(key)
  local limit = share_of_room()
  local due = redis.call('ZRANGEBYSCORE', key, '-inf', text(now), 'LIMIT', 0, limit)
  looked_at(#due, limit)
  return due
end

-- A script that fails leaves a message where it was, and perhaps where it should go, too (docs/design/0012-scripts.md). `died` in its
-- hash says that it is dead, wherever it stands; a ready one is ready, whatever else says that it is claimed or delayed.

-- Finishes a death: those in the outbox go on from there to where the dead of the queue are.
local function finish_death(queue, tag, died)
  redis.call('HDEL', queue.message .. tag, 'owner', 'expires', 'ttl_ms', 'delay')
  if not redis.call('ZSCORE', queue.dead, tag) then redis.call('ZADD', queue.dlx_outbox, is_whole(died) and died or text(now), tag) end
  redis.call('ZREM', queue.expiry, tag)
end

-- Removes tags without a message from a place of the dead: a few at random, which are all in time.
local LOOKED_AT = 20
local function clear_tags(queue, place)
  for _, tag in ipairs(redis.call('ZRANDMEMBER', place, LOOKED_AT)) do
    if redis.call('EXISTS', queue.message .. tag) == 0 then redis.call('ZREM', place, tag) end
  end
end

-- A message of a group goes through all steps at once: what follows for its group looks at where its messages stand.
local function promote_to_group(queue, tag, holders, score, expires)
  local held = groups().enter(queue.meta, tag, holders, score, false)
  if expires then
    redis.call('ZADD', queue.expiry, text(expires), tag)
    redis.call('HSET', queue.message .. tag, 'expires', text(expires))
  end
  redis.call('HDEL', queue.message .. tag, 'score', 'delay', 'ttl_ms', 'owner')
  redis.call('ZREM', queue.delayed, tag)
  log_event(queue.meta, tag, 'promoted', {})
  if held then groups().go_on(queue.meta, holders) end
end

-- Deals with one that is due: it dies, or its places are added to `entries` and `expiries`, and itself to `promoted`. Returns whether
-- it had expired.
local function promote_one(queue, rules, tag, entries, expiries, promoted)
  local hash = queue.message .. tag
  local fields = fields_of(hash, 'score', 'ttl_ms', 'expires', 'owner', 'died', 'task_expiry', 'reason')
  if fields[5] then
    finish_death(queue, tag, fields[5])
  elseif fields[4] and redis.call('ZSCORE', queue.index, tag) then
    -- It is claimed, and goes back from there.
  elseif fields[7] == 'damaged' and fields[1] then
    dead_letter(queue, rules, tag, fields[1], 'damaged', now)
  elseif fields[1] then
    local own, score, ttl = whole(fields[3]), text(whole(fields[1])), whole(fields[2])
    local overdue = own and own <= now
    local expires
    if overdue and fields[6] ~= 'ahead' then
      dead_letter(queue, rules, tag, score, 'expired', now)
      return true
    elseif overdue then
      keep_rank(hash, score)
      score = HEAD
      expires = mark_expired(queue.meta, hash, now)
    else
      expires = expiry_of(ttl, own, now)
      if fields[6] == 'ahead' and expires ~= own then redis.call('HDEL', hash, 'task_expiry') end
    end
    local holders = score ~= HEAD and is_grouped(tag) and groups().group_of(hash)
    if holders then
      promote_to_group(queue, tag, holders, score, expires)
      return overdue
    end
    entries[#entries + 1] = score
    entries[#entries + 1] = tag
    if expires then
      expiries[#expiries + 1] = text(expires)
      expiries[#expiries + 1] = tag
    end
    promoted[#promoted + 1] = { tag, expires }
    return overdue
  elseif not is_there(hash) then
    log_event(queue.meta, tag, 'vanished', {})
  elseif not redis.call('ZSCORE', queue.ready, tag) then
    entries[#entries + 1] = text(255 * PRIORITY_BAND + now)
    entries[#entries + 1] = tag
  end
  return false
end

-- Returns how many were due, and how many of them had expired: in their queue when a claim met them, or before their eta.
local function promote(queue, rules)
  local due = due_in(queue.delayed)
  local promoted, entries, expiries, gone, late = {}, {}, {}, {}, 0
  for _, tag in ipairs(due) do
    local expired = attempt(queue, queue.delayed, tag, promote_one, queue, rules, tag, entries, expiries, promoted)
    if expired == 'damaged' then
      expired = attempt(queue, queue.delayed, tag, promote_one, queue, rules, tag, entries, expiries, promoted)
    end
    if expired ~= 'failed' then gone[#gone + 1] = tag end
    if expired == true then late = late + 1 end
  end
  if #entries > 0 then
    redis.call('ZADD', queue.ready, unpack(entries))
    keep_ttl(rules[1], queue.ready)
  end
  if #expiries > 0 then
    redis.call('ZADD', queue.expiry, unpack(expiries))
    keep_ttl(rules[1], queue.expiry)
  end
  for _, message in ipairs(promoted) do
    local tag, expires = message[1], message[2]
    if expires then redis.call('HSET', queue.message .. tag, 'expires', text(expires)) end
    redis.call('HDEL', queue.message .. tag, 'score', 'delay', 'ttl_ms', 'owner')
    log_event(queue.meta, tag, 'promoted', {})
  end
  if #gone > 0 then redis.call('ZREM', queue.delayed, unpack(gone)) end
  return #gone, late
end

-- Deals with a ready message that is due: it dies, or it is a task that stands first from now on. Returns whether it expired now, and when
-- to look again, or false.
local function expire_one(queue, rules, tag, score)
  local hash = queue.message .. tag
  local fields = fields_of(hash, 'expires', 'task_expiry')
  if fields[2] == 'ahead' then
    keep_rank(hash, score)
    redis.call('ZADD', queue.ready, HEAD, tag)
    -- It takes nobody's turn: a worker revokes it, and does not run it.
    if is_grouped(tag) then groups().leave(queue.meta, tag, groups().group_of(hash)) end
    return true, mark_expired(queue.meta, hash, now)
  elseif fields[2] == 'over' and (not fields[1] or whole(fields[1]) > now) then
    -- A pass that failed has moved it already.
    return false, whole(fields[1])
  end
  -- A hash that vanished (flush, eviction) leaves nothing to keep.
  if is_there(hash) then
    dead_letter(queue, rules, tag, score, 'expired', now)
  else
    log_event(queue.meta, tag, 'vanished', {})
  end
  redis.call('ZREM', queue.ready, tag)
  return true, false
end


-- Returns how many of the entries that were due were ready messages.
local function expire(queue, rules)
  local due = due_in(queue.expiry)
  local expired, gone = 0, {}
  for _, tag in ipairs(due) do
    local score, ended, later = redis.call('ZSCORE', queue.ready, tag), false, false
    if not score and is_grouped(tag) then score = redis.call('ZSCORE', beside(queue.meta, 'held'), tag) end
    if score then ended, later = attempt(queue, queue.expiry, tag, expire_one, queue, rules, tag, score) end
    if ended == true then expired = expired + 1 end
    if later then
      redis.call('ZADD', queue.expiry, text(later), tag)
    elseif ended ~= 'failed' then
      gone[#gone + 1] = tag
    end
  end
  if #gone > 0 then redis.call('ZREM', queue.expiry, unpack(gone)) end
  return expired
end

-- Deals with a claimed message that is overdue. Returns 'stale' where it is claimed no more, 'dead' where it died at the delivery limit.
local function recover_one(queue, rules, tag)
  local fields = fields_of(queue.message .. tag, 'score', 'expires', 'died', 'owner')
  if fields[3] then
    finish_death(queue, tag, fields[3])
  elseif redis.call('ZSCORE', queue.ready, tag) then
    redis.call('HDEL', queue.message .. tag, 'score', 'delay', 'owner')
    return 'stale'
  elseif not fields[4] and redis.call('ZSCORE', queue.delayed, tag) then
    return 'stale'
  elseif not fields[1] then
    log_event(queue.meta, tag, 'vanished', {})
  else
    return return_lost(queue, rules, ARGV[8], tag, fields[1], fields[2], now)
  end
end

-- Returns how many were recovered, and how many of them died at the delivery limit.
local function recover(queue, rules)
  local recovered, died = 0, 0
  for _, tag in ipairs(due_in(queue.index)) do
    local how = attempt(queue, queue.index, tag, recover_one, queue, rules, tag)
    if how ~= 'failed' then redis.call('ZREM', queue.index, tag) end
    if how ~= 'failed' and how ~= 'stale' then recovered = recovered + 1 end
    if how == 'dead' then died = died + 1 end
  end
  return recovered, died
end

-- What a claim found expired has no place yet where its queue has no dead-letter exchange. Returns how many wait for one.
local function sort_dlx_outbox(queue, rules)
  if rules[2] then return redis.call('ZCARD', queue.dlx_outbox) end
  local limit = share_of_room()
  local tags = redis.call('ZRANGE', queue.dlx_outbox, 0, limit - 1)
  looked_at(#tags, limit)
  for _, tag in ipairs(tags) do
    if tonumber(rules[1]) then
      redis.call('UNLINK', queue.message .. tag)
      redis.call('HINCRBY', queue.meta, 'discarded', 1)
    elseif is_there(queue.message .. tag) then
      local fields = redis.call('HMGET', queue.message .. tag, 'died', 'score')
      if not (fields[1] and fields[2]) then
        local score = fields[2] and is_whole(fields[2]) and fields[2] or redis.call('ZSCORE', queue.dlx_outbox, tag)
        fields[1] = text(now)
        redis.call('HSET', queue.message .. tag, 'score', text(tonumber(score)), 'reason', 'unroutable', 'died', fields[1])
      end
      if not is_whole(fields[1]) then fields[1] = text(now) end
      redis.call('ZADD', queue.dead, fields[1], tag)
    end
    redis.call('ZREM', queue.dlx_outbox, tag)
  end
  return 0
end

-- When the first entry of a place is due, nil without one. What failed work has left there is looked at in the next pass.
local function next_due(key)
  local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  local due = first[2] and tonumber(first[2])
  if due and (due > now or failure == '') then return due end
end

local reply = {}
local function answer(wait, ...)
  for _, value in ipairs({ math.max(0, math.ceil(wait)), ... }) do
    reply[#reply + 1] = value
  end
end

-- Returns by how much a counter of the queue has grown since this was asked last: for the caller's log.
local function growth_of(queue, counter)
  local counts = redis.call('HMGET', queue.meta, counter, counter .. '_logged')
  local grown = (tonumber(counts[1]) or 0) - (tonumber(counts[2]) or 0)
  if grown > 0 then redis.call('HSET', queue.meta, counter .. '_logged', counts[1]) end
  return grown
end

local function trim_store(queue)
  local limit = share_of_room()
  return looked_at(trim_dead(queue, tonumber(ARGV[9]), now - ARGV[10], limit), limit)
end

local function free_trash(queue)
  return looked_at(empty_trash(queue.trash, queue.message, queue.meta, share_of_room(), now, ''), math.huge)
end

-- Groups that a pass looks at: those behind the last one of the pass before.
local TENDED = 20
local function tend_groups(queue)
  local g = groups().read(queue.meta)
  if g then clear_held(g) end
  local reached = g and look_at_groups(g, redis.call('HGET', queue.meta, 'tended'), TENDED, mend_groups(g))
  if reached then redis.call('HSET', queue.meta, 'tended', reached) else redis.call('HDEL', queue.meta, 'tended') end
end

-- Returns when the next limiter of the queue is due (ms), 0 where none is.
local function pass_limiters(queue, went_back)
  local limit = share_of_room()
  local due, admitted = tend_limiters(queue, went_back, TENDED, limit)
  room = room - admitted
  return due
end

local function wake_consumers(queue, wakeup, ttl)
  if redis.call('EXISTS', queue.ready) == 0 then return end
  redis.call('ZADD', wakeup, 0, 'work')
  keep_ttl(ttl, wakeup)
end

local function discarded_by(queue)
  return tonumber(redis.call('HGET', queue.meta, 'discarded') or 0) or 0
end

local function sweep(queue)
  unfinished, failure = false, ''
  if room <= 0 then return answer(0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '') end
  if redis.call('EXISTS', queue.ready, queue.delayed, queue.index, queue.dlx_outbox, queue.dead, queue.trash, beside(queue.meta, 'held')) == 0 then
    redis.call('UNLINK', queue.expiry, beside(queue.meta, 'groups'), beside(queue.meta, 'limited'),
      beside(queue.meta, 'limited_until'))
    local overrun, skipped, more = alone(trim_events, queue.meta)
    return answer(more and 0 or interval, log_of(queue.meta) and 1 or 2, 0, 0, 0, 0, 0, 0, 0, overrun, skipped, 0, failure)
  end
  local record = redis.call('HMGET', queue.meta, 'sweeper', 'lease', 'swept', 'grace', 'id', 'wakeup', 'newest', 'timeouts', 'groups',
    'limiters', 'rebased')
  local leased_until, swept, grace_until = tonumber(record[2]) or 0, tonumber(record[3]) or 0, tonumber(record[4]) or 0
  if not take_over and record[1] and record[1] ~= ARGV[1] and leased_until > now and swept <= now then
    return answer(leased_until - now + 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '')
  end
  local shortest, _, longest = timeouts_of(record[8])
  local interval, lease, longest_gap, grace = pace_of(shortest, longest)
  local visibility = tonumber(ARGV[11])
  if visibility and shortest then visibility = math.min(visibility, shortest) end
  -- Nothing was swept between a publish and the step where the clock went back while nobody consumed the queue.
  local newest = tonumber(record[7]) or 0
  local ahead = swept > now and swept or newest > now and newest ~= tonumber(record[11]) and newest
  -- Until all is re-based, the next pass shall see that the clock went back.
  local pass, rebased = now, true
  if ahead then
    grace_until = now + grace
    local limit = share_of_room()
    rebased = alone(rebase, queue, now, ahead, visibility, limit) ~= false
    if not rebased then pass = math.max(now, swept) elseif record[5] then redis.call('HSET', queue.meta, 'rebased', text(newest)) end
    room = room - limit
  end
  -- Living workers get the time to send a heartbeat first. Of a queue that was never swept the time before is unknown.
  if redis.call('EXISTS', queue.index) == 1 and (swept == 0 or was_away(swept, longest_gap)) then
    grace_until = now + grace
  end
  local rules = redis.call('HMGET', queue.meta, unpack(FAILURE_RULES))
  local discarded_before = discarded_by(queue)
  local promoted, late = alone(promote, queue, rules)
  local recovered, died = 0, 0
  if grace_until <= now then recovered, died = alone(recover, queue, rules) end
  local expired = alone(expire, queue, rules)
  alone(clear_tags, queue, queue.dlx_outbox)
  alone(clear_tags, queue, queue.dead)
  if record[9] then alone(tend_groups, queue) end
  local limited = record[10] and alone(pass_limiters, queue, ahead)
  local dlx_outbox = alone(sort_dlx_outbox, queue, rules)
  local evicted = alone(trim_store, queue)
  local freed = alone(free_trash, queue)
  local overrun, skipped, more = alone(trim_events, queue.meta)
  local wait = interval
  if unfinished or more or not rebased or (freed > 0 and redis.call('EXISTS', queue.trash) == 1) then
    wait = 0
  else
    for _, key in ipairs({ queue.delayed, queue.expiry }) do
      local due = next_due(key)
      if due then wait = math.min(wait, due - now) end
    end
    if limited and limited > 0 then wait = math.min(wait, math.max(0, limited - now)) end
    local due = next_due(queue.index)
    if due then wait = math.min(wait, math.max(due, grace_until) - now) end
  end
  -- What a deleted queue has left in the trash must not bring its record back.
  if record[5] then
    redis.call('HSET', queue.meta, 'sweeper', ARGV[1], 'lease', text(now + math.max(lease, wait)), 'swept', text(pass),
      'next', text(now + wait), 'grace', text(grace_until), 'newest', text(math.max(now, newest)))
  end
  alone(wake_consumers, queue, record[6] or queue.wakeup, rules[1])
  answer(wait, 1, promoted, recovered, died, expired + late, discarded_by(queue) - discarded_before, dlx_outbox, evicted, overrun,
    skipped, growth_of(queue, 'damaged'), failure)
end

for base = 0, #KEYS - STATE_KEYS, STATE_KEYS do
  -- A key of another type in one queue must not keep the others from being swept.
  local queue = state_keys(base)
  local fine, failure = pcall(sweep, queue)
  if not fine then
    answer(interval, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, type(failure) == 'table' and failure.err or tostring(failure))
  end
  local id = redis.pcall('HGET', queue.meta, 'id')
  reply[#reply + 1] = type(id) == 'string' and id or ''
end
for _, part in ipairs(deaths) do reply[#reply + 1] = part end
return reply
