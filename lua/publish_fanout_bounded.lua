#!lua
-- Appends one broadcast to the stream of an exchange with limits, once, if they allow it; tells what else the publisher has to do.
-- KEYS  1 stream (stream)  2 fanout (hash)  3 producer (string)  4 cursors (zset, read)  5 subscribers (zset, read)
--       6 subscriber (hash, read)  7 waiting_publishers (zset)  8 exchanges (hash, read)
-- ARGV  1 to 9 as `publish_fanout` has them
--       10 limits that the publisher knows of ('' = none yet), with '!' before them where it refuses the broadcast by its type
--       11 'threshold most waiter ticket', as `publish_bounded` has it
--       12 exchange  13 its record, as `publish_fanout` has it
-- Returns as `publish_fanout` does, without 'BOUNDED'; 'UNBOUNDED' where the exchange has no limits; 'REFUSED' where the publisher
-- refuses and the limits are as it knows them, counted. Or a list: { 'CHANGED', limits, arguments of the exchange };
-- { 'THROTTLE', us to sleep first }; { 'WAIT', ticket, subscribers that it waits for... }; { 'FULL', limit, its size, what it has, 0 };
-- { 'DROPPED', id, how many of the oldest were dropped unread, 0 }.
-- Bound: one broadcast; ten subscribers at a time until one counts.
-- @include append_broadcast
-- @include idempotent_publish
-- @include limits
-- @include slowest_subscriber
-- @include waiting_publishers

local stream, fanout, producer, cursors, waiting_publishers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7]
local retry, window, now = ARGV[6] == '1', ARGV[7], now_ms()
if redis.call('HGET', KEYS[8], ARGV[12]) ~= ARGV[13] then return 'REDECLARED' end
local record = redis.call('HMGET', fanout, 'limited', 'arguments', 'count', 'bytes')
if (record[1] or '') == '' then return 'UNBOUNDED' end
if ARGV[10] == '!' .. record[1] then
  redis.call('HINCRBY', fanout, 'rejected', 1)
  return 'REFUSED'
end
if ARGV[10] ~= record[1] then return { 'CHANGED', record[1], record[2] } end
local threshold, most_us, waiter, ticket = string.match(ARGV[11], '^(%S*) (%S*) (%S*) (%S*)$')
if retry then fence_producer(producer, window) end
if retry and was_stored(producer, ARGV[5]) then
  if ticket ~= '' then leave_wait_queue(waiting_publishers, waiter) end
  return ''
end
local nobody = redis.call('EXISTS', cursors) == 0
if nobody and ARGV[9] == '2' then
  redis.call('HINCRBY', fanout, 'unroutable', 1)
  return 'NOBODY'
end

-- The number of an entry, and the bytes of all broadcasts before it: its identity ends with those up to it. Nothing for one that somebody
-- else wrote.
local function place_of(entry)
  local number, bytes = string.match(entry[2][2], '^(%d+) [^ /]*/?(%d*) ')
  if number and entry[2][4] then return tonumber(number), (tonumber(bytes) or 0) - #entry[2][4] end
end

local _, max_bytes, max_pending, overflow, slow = read_limits(record[1])
local size, count, total = #ARGV[1], tonumber(record[3] or 0), tonumber(record[4] or 0)
local slowest, processed = slowest_subscriber(cursors, KEYS[5], KEYS[6], now)
processed = processed or count
local pending, bytes = unread(stream, count, processed), 0
if max_bytes and slowest then
  local cursor = parse_record(redis.call('HGET', KEYS[6], slowest) or '0-0 0 0 0 live -').cursor
  for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. cursor, '+', 'COUNT', 20)) do
    local number, before = place_of(entry)
    if number then
      bytes = total - before
      break
    end
  end
end
local free = max_pending and max_pending - pending or math.huge
local fits = free > 0 and (not max_bytes or bytes + size <= max_bytes)

local function full(limit, most, has)
  redis.call('HINCRBY', fanout, 'rejected', 1)
  if ticket ~= '' then leave_wait_queue(waiting_publishers, waiter) end
  return { 'FULL', limit, most, has, 0 }
end
if max_bytes and size > max_bytes then return full('x-max-length-bytes', max_bytes, bytes) end

-- Who waits for room already has been slow enough.
if slow ~= '-' and fits and ticket == '' and most_us ~= '0'
    and free / max_pending < tonumber(slow == '*' and threshold or slow) then
  local us = math.min(math.ceil(1e6 / free), tonumber(most_us))
  redis.call('HINCRBY', fanout, 'throttled', 1)
  redis.call('HINCRBY', fanout, 'throttled_us', text(us))
  return { 'THROTTLE', us }
end

local ahead = 0
if overflow == 'block' and redis.call('EXISTS', waiting_publishers) == 1 then
  remove_gone_publishers(waiting_publishers, now)
  ahead = ticket ~= '' and redis.call('ZCOUNT', waiting_publishers, '-inf', '(' .. ticket) or redis.call('ZCARD', waiting_publishers)
  -- Sizes differ: who passed a large one that waits could keep it waiting for ever.
  if max_bytes and ahead > 0 then fits = false end
end
if overflow ~= 'drop-head' and (not fits or free <= ahead) then
  if overflow ~= 'block' then
    if free > 0 then return full('x-max-length-bytes', max_bytes, bytes) end
    return full('x-max-pending', max_pending, pending)
  end
  if ticket == '' then
    ticket = text(redis.call('HINCRBY', fanout, 'tickets', 1))
    redis.call('HINCRBY', fanout, 'blocked', 1)
  end
  join_wait_queue(waiting_publishers, waiter, ticket, now)
  local answer = { 'WAIT', ticket }
  local holds_up = max_pending and text(count - max_pending) or processed
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', cursors, '-inf', holds_up, 'LIMIT', 0, 100)) do
    if counts(KEYS[5], KEYS[6], id, now) then answer[#answer + 1] = id end
  end
  return answer
end

if not accept(producer, ARGV[5], retry, window) then return nobody and ARGV[9] == '0' and 'NOBODY' or '' end
if nobody then redis.call('HINCRBY', fanout, 'unroutable', 1) end
-- Publishers that wait for subscribers lose nothing of theirs.
local keep = overflow == 'drop-head' and ARGV[4] or text(math.max(ARGV[4], pending + 1))
total = total + size
local id = append_broadcast(stream, fanout, ARGV[1], ARGV[3] .. '/' .. text(total), ARGV[2], keep, ARGV[8])
redis.call('HINCRBY', fanout, 'bytes', size)
remember_number(producer, ARGV[5], retry, window)
if ticket ~= '' then
  leave_wait_queue(waiting_publishers, waiter)
  notify_publishers(waiting_publishers, free - 1, now)
end
if nobody and ARGV[9] == '0' then return 'NOBODY' end
if fits then return id end

-- drop-head: subscribers see from the numbers how many they have missed.
local dropped = 0
if max_pending and pending + 1 > max_pending then
  dropped = pending + 1 - max_pending
  redis.call('XTRIM', stream, 'MAXLEN', '=', max_pending)
end
while max_bytes do
  local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', 20)
  local gone = 0
  for _, entry in ipairs(oldest) do
    local number, before = place_of(entry)
    if number and total - before <= max_bytes then break end
    gone = gone + 1
    if number and number > processed then dropped = dropped + 1 end
  end
  if gone > 0 then redis.call('XTRIM', stream, 'MAXLEN', '=', redis.call('XLEN', stream) - gone) end
  if gone < 20 then break end
end
redis.call('HINCRBY', fanout, 'dropped', dropped)
return { 'DROPPED', id, dropped, 0 }
