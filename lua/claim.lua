#!lua flags=allow-oom
-- Takes messages of one queue or more for a consumer: out of the queue and into the index, in one step.
-- KEYS  per queue: queue (zset), messages_index (zset), message (prefix of a hash), bell (zset), meta (hash), expiry (zset),
--       dying (zset)
-- ARGV  1 credit: how many messages at most  2 visibility timeout (ms)  3 holder  4 bytes of payload at most
--       5 share (1 = split the credit among the queues, 0 = the first queue first)  6 the worker's name, packed for events
-- Returns { more, header, payload, header, payload, ... }: `more` lists, space-separated, the numbers (from 1) of the queues
-- that still have ready messages; a header is 'queue-number tag claim failures seen'.
-- @include now
-- @include text
-- @include marks

local WIDTH = 7
local queues = #KEYS / WIDTH
local credit = math.min(tonumber(ARGV[1]), 500)
local bytes = tonumber(ARGV[4])
local share = ARGV[5] == '1'
local now, deadline
local reply = { '' }
local more = {}
-- Queues that gave less than was asked for: nothing is left there.
local drained = {}

local _for_marked
-- The functions for messages of queues with limits or events, made when the first one is met: each call makes the functions anew
-- that it comes by, and these are many.
local function for_marked()
  if not _for_marked then
-- @include room
-- @include event
    _for_marked = { is_limited = is_limited, size_of = size_of, make_room = make_room, tell = tell }
  end
  return _for_marked
end

-- Takes up to `count` from queue `q`; returns how many it took.
local function take(q, count)
  local base = (q - 1) * WIDTH
  local popped = redis.call('ZPOPMIN', KEYS[base + 1], count)
  drained[q] = #popped < 2 * count
  if #popped > 0 and not now then
    now = now_ms()
    deadline = text(now + ARGV[2])
  end
  local index = {}
  local taken = 0
  for i = 1, #popped, 2 do
    local tag, score = popped[i], popped[i + 1]
    if bytes <= 0 then
      -- The reply is full: what is left goes back to where it was.
      redis.call('ZADD', KEYS[base + 1], score, tag)
      drained[q] = false
    else
      local hash = KEYS[base + 3] .. tag
      local fields = redis.call('HMGET', hash, 'payload', 'claim', 'failed', 'seen', 'expires')
      local expires = fields[5]
      if expires then redis.call('ZREM', KEYS[base + 6], tag) end
      if expires and tonumber(expires) <= now then
        -- The sweep decides where it goes: at this very moment it is due there.
        local marked = not is_plain(tag) and for_marked()
        if marked and marked.is_limited(tag) then
          marked.make_room(KEYS[base + 5], 1, marked.size_of(hash), 'gone', now)
        end
        redis.call('HSET', hash, 'score', score, 'reason', 'expired', 'died', text(now))
        redis.call('HDEL', hash, 'expires')
        redis.call('ZADD', KEYS[base + 7], text(now), tag)
        redis.call('HINCRBY', KEYS[base + 5], 'expired', 1)
        redis.call('HINCRBY', KEYS[base + 5], 'dead_lettered', 1)
        if marked then marked.tell(KEYS[base + 5], tag, 'dead_lettered', { reason = 'expired' }) end
      elseif fields[1] then
        local claim = (tonumber(fields[2]) or 0) + 1
        redis.call('HSET', hash, 'score', score, 'claim', claim, 'by', ARGV[3])
        index[#index + 1] = deadline
        index[#index + 1] = tag
        taken = taken + 1
        bytes = bytes - #fields[1]
        reply[#reply + 1] = q .. ' ' .. tag .. ' ' .. claim .. ' ' .. (fields[3] or '0') .. ' ' .. (fields[4] or '0')
        reply[#reply + 1] = fields[1]
        if not is_plain(tag) then for_marked().tell(KEYS[base + 5], tag, 'claimed', { claim = claim, worker = ARGV[6] }) end
      else
        redis.call('HINCRBY', KEYS[base + 5], 'vanished', 1)
        if not is_plain(tag) then for_marked().tell(KEYS[base + 5], tag, 'vanished', {}) end
      end
    end
  end
  if #index > 0 then redis.call('ZADD', KEYS[base + 2], unpack(index)) end
  if popped[1] and not is_plain(popped[1]) and for_marked().is_limited(popped[1]) then
    for_marked().make_room(KEYS[base + 5], #popped / 2, 0, 'claimed', now)
  end
  return taken
end

local open = {}
for q = 1, queues do open[q] = q end
while credit > 0 and bytes > 0 and #open > 0 do
  local still = {}
  for i, q in ipairs(open) do
    if credit <= 0 or bytes <= 0 then break end
    local count = credit
    if share then count = math.ceil(credit / (#open - i + 1)) end
    credit = credit - take(q, count)
    if not drained[q] then still[#still + 1] = q end
  end
  open = still
end
for q = 1, queues do
  local base = (q - 1) * WIDTH
  if not drained[q] and redis.call('EXISTS', KEYS[base + 1]) == 1 then
    redis.call('ZADD', KEYS[base + 4], 0, 'work')
    more[#more + 1] = q
  else
    redis.call('DEL', KEYS[base + 4])
  end
end
reply[1] = table.concat(more, ' ')
return reply
