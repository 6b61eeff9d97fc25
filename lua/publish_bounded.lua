#!lua
-- Puts one message into one queue that has limits, once, if the limits allow it; tells what else the publisher has to do.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset, read)  4 message (prefix of a hash)  5 wakeup (zset)
--       6 meta (hash)  7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
--       12 waiting_publishers (zset)  13 consumers (zset, read)  14 consumer (prefix of a hash, read)  15 heartbeats (zset, read)
--       16 producer (string)  [17 binding (hash, read): where its version is given]  [18 message of a staged body (hash): in the
--       place before where there are no bindings]
-- ARGV  1 payload  2 rank, as `publish` has it  3 eta (ms since the epoch, '+ms' from now, 0 = now)
--       4 number of the message on its connection  5 retry (0/1)  6 dedup window (ms)
--       7 expiry of the message, as `publish` has it
--       8 limits that the publisher knows of ('' = none yet), with '!' before them where it refuses the message by its type
--       9 'threshold most waiter ticket': share of free room under which it slows down, unless the queue says; most that it slows
--       down (us; 0 = it has, or will not); its name in the line; its place there ('' = it has not waited)
--       10 its description, for queues whose events are written ('' = not made)
--       [11 its deduplication, see include/deduplication]
-- Returns the tag; '' for a duplicate; 'NOQUEUE', 'REDECLARED', 'REROUTE', 'NEED_METADATA' and 'DUPLICATE ...' as `publish`; 'UNBOUNDED'
-- where the queue has no limits; 'REFUSED' where the publisher refuses and the limits are as it knows them, counted. Or a list:
-- { 'CHANGED', limits, arguments of the queue }; { 'THROTTLE', us to sleep first }; { 'WAIT', ticket, live consumers... };
-- { 'FULL', limit, its size, what it has, dead-lettered (0/1) }; { 'DROPPED', tag, how many died for it, were they kept (0/1) }.
-- Bound: one message, 500 that it displaces, and 100 consumers where it has to wait.
-- @include beside
-- @include store_ordinary
-- @include names_limiter
-- @include limits

local meta, waiting_publishers, producer, staged = KEYS[6], KEYS[12], KEYS[16], KEYS[17]
local rank, prepared_by, routed_by = string.match(ARGV[2], '^(%d+) ?(%S*) ?(%S*)$')
if routed_by ~= '' then staged = KEYS[18] end

-- A body that is not put into the queue now is sent again with the next try: it must not fill a full server meanwhile.
local function unstage()
  if staged then redis.call('UNLINK', staged) end
end

-- RECORD of include/enqueue.lua, and what the queue's messages count for.
local record = redis.call('HMGET', meta,
  'id', 'ttl', 'next', 'message_ttl', 'limited', 'event_log', 'wakeup', 'quiet', 'ageing', 'published', 'newest', 'groups', 'bytes', 'expires',
  'limiters')
if not record[1] then return 'NOQUEUE' end
if routed_by ~= '' and (redis.call('HGET', KEYS[17], 'version') or '0') ~= routed_by then
  unstage()
  return 'REROUTE'
end
-- The message may have been prepared by what the queue was declared with, and not by another declaration.
if prepared_by ~= '' and prepared_by ~= record[1] then
  unstage()
  return 'REDECLARED'
end
if not record[5] then return 'UNBOUNDED' end
local threshold, most_us, waiter, ticket = string.match(ARGV[9], '^(%S*) (%S*) (%S*) (%S*)$')
if record[6] and ARGV[10] == '' then
  unstage()
  return 'NEED_METADATA'
end

local max_length, max_bytes, max_pending, overflow, slow = read_limits(record[5])
local size = max_bytes and #ARGV[1] + (staged and redis.call('HSTRLEN', staged, 'body') or 0) or 0
local length = redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[2])
if record[12] or record[15] then length = length + redis.call('ZCARD', beside(meta, 'held')) end
local pending = max_pending and length + redis.call('ZCARD', KEYS[3]) or length
local bytes = max_bytes and tonumber(record[13] or 0) or 0
if bytes ~= 0 and length == 0 and redis.call('EXISTS', KEYS[3]) == 0 then
  -- Nothing is there: what evicted messages counted for is forgotten.
  bytes = 0
  redis.call('HDEL', meta, 'bytes')
end

-- How many more messages the counts allow, the smallest share of a limit that is free, and the limit that leaves the least.
local free, share, tight = math.huge, 1, { 'x-max-length-bytes', max_bytes, bytes }
local function count(name, limit, has)
  if not limit then return end
  share = math.min(share, (limit - has) / math.max(limit, 1))
  if limit - has < free then free, tight = limit - has, { name, limit, has } end
end
count('x-max-length', max_length, length)
count('x-max-pending', max_pending, pending)
local fits = free > 0 and (not max_bytes or bytes + size <= max_bytes)
if free > 0 and not fits then tight = { 'x-max-length-bytes', max_bytes, bytes } end
-- Who waits for room already has been slow enough.
local slow_down = slow ~= '-' and fits and ticket == '' and most_us ~= '0' and share < tonumber(slow == '*' and threshold or slow)

-- An ordinary message that fits is stored as in `publish`, without the functions further down.
local special = staged or ARGV[11] or record[2] or record[4] or record[6] or record[7] or record[8] or record[9] or record[12]
local simple = ARGV[3] == '0' and ARGV[5] == '0' and ARGV[7] == '' and ticket == '' and not special and not names_limiter(envelope_in(ARGV[1]))
if simple and fits and not slow_down and record[5] == ARGV[8] and (overflow ~= 'block' or redis.call('EXISTS', waiting_publishers) == 0) then
  local tag = store_ordinary(meta, KEYS[1], KEYS[4], KEYS[5], producer, record, false, ARGV[1], tonumber(rank), ARGV[4], ARGV[6])
  if max_bytes and tag ~= '' then redis.call('HINCRBY', meta, 'bytes', size) end
  return tag
end

-- @include enqueue
-- @include idempotent_publish
-- @include state_keys
-- @include dead_letter
-- @include deduplication

local queue = state_keys(0)
record.description = ARGV[10]
local retry, window = ARGV[5] == '1', ARGV[6]
local stored = (retry or ARGV[11]) and was_stored(producer, ARGV[4])
local duplicate, replacement = ARGV[11] and not stored and duplicate_of(ARGV[11], queue.message), nil
if ARGV[11] and not stored and string.sub(ARGV[11], 1, 8) == 'replace/' then
-- @include replacement
  replacement, duplicate = replacement_of(ARGV[11], duplicate, queue, ARGV[3])
  record.ready_at = replacement and replacement.ready_at
end
if duplicate then
  unstage()
  if ticket ~= '' then leave_wait_queue(waiting_publishers, waiter) end
  return 'DUPLICATE ' .. duplicate
end
if ARGV[8] == '!' .. record[5] then
  unstage()
  redis.call('HINCRBY', queue.meta, 'rejected', 1)
  return 'REFUSED'
end
if record[5] ~= ARGV[8] then
  unstage()
  return { 'CHANGED', record[5], redis.call('HGET', queue.meta, 'arguments') }
end
if staged and redis.call('EXISTS', staged) == 0 then
  if stored or was_stored(producer, ARGV[4]) then return '' end
  return redis.error_reply('ERR the staged body is gone')
end
if retry then fence_producer(producer, window) end
if stored then
  unstage()
  if ticket ~= '' then leave_wait_queue(waiting_publishers, waiter) end
  return ''
end

local replaces = replacement and replacement.size
if replaces then
  -- It takes the room of the one before.
  length, pending, free, slow_down = length - 1, pending - 1, free + 1, false
  fits = free > 0 and (not max_bytes or bytes - replaces + size <= max_bytes)
end

local function full(dead)
  redis.call('HINCRBY', queue.meta, 'rejected', 1)
  if ticket ~= '' then leave_wait_queue(waiting_publishers, waiter) end
  return { 'FULL', tight[1], tight[2], tight[3], dead }
end

local function put(dropped)
  local tag = enqueue(queue.meta, queue.ready, queue.delayed, queue.message, queue.wakeup, queue.schedule_wakeup, record,
    ARGV[1], tonumber(rank), replacement and replacement.eta or ARGV[3], staged, queue.expiry, ARGV[7])
  remember_number(producer, ARGV[4], retry, window)
  -- What a transient queue leaves goes with it.
  if record[14] and tonumber(record[14]) < tonumber(window) then redis.call('PEXPIRE', producer, record[14]) end
  if replacement and not dropped then
    replacement.finish(tag)
  elseif ARGV[11] and not dropped then
    remember_duplicate(ARGV[11], tag, queue.message, ARGV[3])
  end
  return tag
end

local function new_here()
  if accept(producer, ARGV[4], retry, window) then return true end
  if retry then unstage() end
  return false
end

local rules
-- Ends the life here of a message that is in `place`, ready or delayed.
local function drop(place, tag, score)
  rules = rules or redis.call('HMGET', queue.meta, 'ttl', 'dlx')
  -- A hash that vanished (eviction) leaves nothing to keep.
  if is_there(queue.message .. tag) then
    dead_letter(queue, rules, tag, score, 'maxlen', now_ms())
  else
    log_event(queue.meta, tag, 'vanished', {})
  end
  redis.call('ZREM', place, tag)
  redis.call('ZREM', queue.expiry, tag)
end

if slow_down then
  unstage()
  local us = math.min(math.ceil(1e6 / free), tonumber(most_us))
  redis.call('HINCRBY', queue.meta, 'throttled', 1)
  redis.call('HINCRBY', queue.meta, 'throttled_us', text(us))
  return { 'THROTTLE', us }
end

if overflow == 'drop-head' then
  if not new_here() then return '' end
  local tag = put()
  if fits then return tag end
  local dropped = 0
  length, pending = length + 1, pending + 1
  if max_bytes then bytes = tonumber(redis.call('HGET', queue.meta, 'bytes')) end
  while dropped < 500 and ((max_length and length > max_length) or (max_pending and pending > max_pending)
      or (max_bytes and bytes > max_bytes)) do
    local place = queue.ready
    local head = redis.call('ZRANGE', place, 0, 0, 'WITHSCORES')
    if not head[1] then
      place = queue.delayed
      head = redis.call('ZRANGE', place, 0, 0, 'WITHSCORES')
      if not head[1] then break end
      head[2] = fields_of(queue.message .. head[1], 'score')[1] or head[2]
    end
    drop(place, head[1], head[2])
    if max_bytes then bytes = tonumber(redis.call('HGET', queue.meta, 'bytes')) end
    length, pending, dropped = length - 1, pending - 1, dropped + 1
  end
  return { 'DROPPED', tag, dropped, (rules[2] or not rules[1]) and 1 or 0 }
end

local ahead = 0
if overflow == 'block' and not (replaces and fits) and redis.call('EXISTS', waiting_publishers) == 1 then
  remove_gone_publishers(waiting_publishers, now_ms())
  ahead = ticket ~= '' and redis.call('ZCOUNT', waiting_publishers, '-inf', '(' .. ticket) or redis.call('ZCARD', waiting_publishers)
  -- Sizes differ: who passed a large message that waits could keep it waiting for ever.
  if max_bytes and ahead > 0 then fits = false end
end
if not fits or free <= ahead then
  if overflow == 'reject-publish-dlx' then
    if not new_here() then return '' end
    local tag = put(true)
    drop(redis.call('ZSCORE', queue.ready, tag) and queue.ready or queue.delayed, tag, text(rank * level_of(record[9]) + now_ms()))
    return full((rules[2] or not rules[1]) and 1 or 0)
  end
  if overflow ~= 'block' or tight[2] < 1 or (max_bytes and size > max_bytes) then
    unstage()
    return full(0)
  end
  if ticket == '' then
    ticket = text(redis.call('HINCRBY', queue.meta, 'tickets', 1))
    redis.call('HINCRBY', queue.meta, 'blocked', 1)
  end
  unstage()
  local now = now_ms()
  join_wait_queue(waiting_publishers, waiter, ticket, now)
-- @include living
  return { 'WAIT', ticket, unpack(living(KEYS[13], KEYS[14], KEYS[15], 100)) }
end

if not new_here() then return '' end
local tag = put()
if ticket ~= '' then
  leave_wait_queue(waiting_publishers, waiter)
  notify_publishers(waiting_publishers, free - 1, now_ms())
end
return tag
