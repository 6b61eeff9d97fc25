-- @include text
-- @include tag_flags
-- @include limits

-- KEYS of its own  waiting_publishers (zset)
-- A tag has this character in place of the dot before its queue's id where the queue has limits: whoever settles or claims a
-- message sees from its tag alone whether publishers may wait for the room that it leaves. Others pay nothing.
local function is_bounded(tag)
  local flag = string.byte(tag, 20)
  return flag == BOUNDED or flag == BOUNDED_AND_LOGGED
end

-- Milliseconds after which a waiting publisher that has not come back counts as gone; one that was notified has RUNG_MS. It comes
-- every second by itself (`broker/flow_control/publisher_queue.py`); one that comes late keeps its ticket.
local GONE_MS, NOTIFIED_MS = 5000, 1000
-- Milliseconds that the line of waiting publishers outlives the last who came.
local LINE_MS = 60000

-- Bytes that a message counts for.
local function size_of(hash)
  local payload, body = redis.pcall('HSTRLEN', hash, 'payload'), redis.pcall('HSTRLEN', hash, 'body')
  -- A key of another type has no fields.
  return type(payload) == 'number' and type(body) == 'number' and payload + body or 0
end

local function leave_wait_queue(waiting_publishers, waiter)
  redis.call('ZREM', waiting_publishers, waiter)
  redis.call('ZREM', waiting_publishers .. ':seen', waiter)
  redis.call('DEL', waiting_publishers .. ':' .. waiter)
end

local function remove_gone_publishers(waiting_publishers, now)
  local seen = waiting_publishers .. ':seen'
  local gone = redis.call('ZRANGEBYSCORE', seen, '-inf', '(' .. text(now - GONE_MS), 'LIMIT', 0, 500)
  if #gone > 0 then
    redis.call('ZREM', waiting_publishers, unpack(gone))
    redis.call('ZREM', seen, unpack(gone))
  end
end

-- Wakes the `count` publishers that have waited longest.
local function notify_publishers(waiting_publishers, count, now)
  if count < 1 or redis.call('EXISTS', waiting_publishers) == 0 then return end
  remove_gone_publishers(waiting_publishers, now)
  for _, waiter in ipairs(redis.call('ZRANGE', waiting_publishers, 0, math.min(count, 100) - 1)) do
    redis.call('ZADD', waiting_publishers .. ':' .. waiter, 0, 'capacity')
    redis.call('PEXPIRE', waiting_publishers .. ':' .. waiter, GONE_MS)
    redis.call('ZADD', waiting_publishers .. ':seen', 'XX', 'LT', text(now - GONE_MS + NOTIFIED_MS), waiter)
  end
end

-- Notes what became of `count` messages of a queue with limits: they were 'claimed', and still count as pending; were 'settled';
-- or have 'gone' unclaimed. `bytes` is what they counted for, where they count no more. Wakes as many publishers if one of the
-- limits has given way.
local function release_capacity(meta, count, bytes, how, now)
  if count < 1 then return end
  local record = redis.call('HMGET', meta, 'limited', 'waiting_publishers')
  if not record[1] then return end
  local max_length, max_bytes, max_pending = read_limits(record[1])
  if max_bytes and bytes > 0 then redis.call('HINCRBY', meta, 'bytes', -bytes) end
  if (max_length and how ~= 'settled') or ((max_bytes or max_pending) and how ~= 'claimed') then
    notify_publishers(record[2], count, now)
  end
end
