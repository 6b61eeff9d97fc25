-- @include text

-- KEYS of its own  waiting_publishers (zset)
-- Milliseconds after which a waiting publisher that has not come back counts as gone; one that was notified has NOTIFIED_MS. It comes
-- every second by itself (`broker/flow_control/publisher_queue.py`); one that comes late keeps its ticket.
local GONE_MS, NOTIFIED_MS = 5000, 1000
-- Milliseconds that the line of waiting publishers outlives the last who came.
local LINE_MS = 60000

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

-- Puts a publisher into the line, or renews its place.
local function join_wait_queue(waiting_publishers, waiter, ticket, now)
  redis.call('ZADD', waiting_publishers, ticket, waiter)
  redis.call('ZADD', waiting_publishers .. ':seen', text(now), waiter)
  redis.call('PEXPIRE', waiting_publishers, LINE_MS)
  redis.call('PEXPIRE', waiting_publishers .. ':seen', LINE_MS)
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
