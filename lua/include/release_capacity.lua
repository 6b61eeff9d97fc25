-- @include text
-- @include tag_flags
-- @include limits

-- KEYS of its own  room (zset)
-- A tag has this character in place of the dot before its queue's id where the queue has limits: whoever settles or claims a
-- message sees from its tag alone whether publishers may wait for the room that it leaves. Others pay nothing.
local function is_limited(tag)
  local mark = string.byte(tag, 20)
  return mark == LIMITED or mark == LIMITED_AND_TOLD
end

-- Milliseconds after which a waiting publisher that has not come back counts as gone; one that was rung has RUNG_MS. It comes
-- every second by itself (`broker/flow_control/publisher_queue.py`); one that comes late keeps its ticket.
local GONE_MS, RUNG_MS = 5000, 1000
-- Milliseconds that the line of waiting publishers outlives the last who came.
local LINE_MS = 60000

-- Bytes that a message counts for.
local function size_of(hash)
  local payload, body = redis.pcall('HSTRLEN', hash, 'payload'), redis.pcall('HSTRLEN', hash, 'body')
  -- A key of another type has no fields.
  return type(payload) == 'number' and type(body) == 'number' and payload + body or 0
end

local function leave_line(room, waiter)
  redis.call('ZREM', room, waiter)
  redis.call('ZREM', room .. ':seen', waiter)
  redis.call('DEL', room .. ':' .. waiter)
end

local function forget_gone(room, now)
  local seen = room .. ':seen'
  local gone = redis.call('ZRANGEBYSCORE', seen, '-inf', '(' .. text(now - GONE_MS), 'LIMIT', 0, 500)
  if #gone > 0 then
    redis.call('ZREM', room, unpack(gone))
    redis.call('ZREM', seen, unpack(gone))
  end
end

-- Wakes the `count` publishers that have waited longest.
local function ring_room(room, count, now)
  if count < 1 or redis.call('EXISTS', room) == 0 then return end
  forget_gone(room, now)
  for _, waiter in ipairs(redis.call('ZRANGE', room, 0, math.min(count, 100) - 1)) do
    redis.call('ZADD', room .. ':' .. waiter, 0, 'room')
    redis.call('PEXPIRE', room .. ':' .. waiter, GONE_MS)
    redis.call('ZADD', room .. ':seen', 'XX', 'LT', text(now - GONE_MS + RUNG_MS), waiter)
  end
end

-- Notes what became of `count` messages of a queue with limits: they were 'claimed', and still count as pending; were 'settled';
-- or have 'gone' unclaimed. `bytes` is what they counted for, where they count no more. Wakes as many publishers if one of the
-- limits has given way.
local function make_room(meta, count, bytes, how, now)
  if count < 1 then return end
  local record = redis.call('HMGET', meta, 'limited', 'room')
  if not record[1] then return end
  local max_length, max_bytes, max_pending = read_limits(record[1])
  if max_bytes and bytes > 0 then redis.call('HINCRBY', meta, 'bytes', -bytes) end
  if (max_length and how ~= 'settled') or ((max_bytes or max_pending) and how ~= 'claimed') then
    ring_room(record[2], count, now)
  end
end
