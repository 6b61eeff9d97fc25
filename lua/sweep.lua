#!lua flags=allow-oom
-- One pass over one queue or more: promotes what is due, recovers what nobody holds any more, empties the trash, rings again.
-- KEYS  per queue: queue (zset), delayed (zset), messages_index (zset), message (prefix of a hash), bell (zset), meta (hash),
--       trash (zset)
-- ARGV  1 sweeper  2 lease (ms)  3 interval to the next pass at the latest (ms)  4 entries a queue at most
--       5 take over (0/1): sweep even where another sweeper holds the lease  6 grace (ms): a gap since the last pass longer
--       than ARGV 7 is an outage, and recovery waits this long after it  7 longest ordinary gap (ms)
-- Returns per queue: ms until the next pass (0 = at once, more is due), promoted, recovered, mine (1 = the lease is ours)
-- @include now
-- @include text

local WIDTH = 7
local now = now_ms()
local lease, interval, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local take_over = ARGV[5] == '1'
local grace, longest_gap = tonumber(ARGV[6]), tonumber(ARGV[7])

local function promote(ready, delayed, message)
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', text(now), 'LIMIT', 0, limit)
  local entries = {}
  for _, tag in ipairs(due) do
    local score = redis.call('HGET', message .. tag, 'score')
    if score then
      entries[#entries + 1] = score
      entries[#entries + 1] = tag
      redis.call('HDEL', message .. tag, 'score')
    end
  end
  if #due > 0 then redis.call('ZREM', delayed, unpack(due)) end
  if #entries > 0 then redis.call('ZADD', ready, unpack(entries)) end
  return #due
end

local function recover(ready, index, message)
  local overdue = redis.call('ZRANGEBYSCORE', index, '-inf', text(now), 'LIMIT', 0, limit)
  local entries = {}
  for _, tag in ipairs(overdue) do
    local hash = message .. tag
    local score = redis.call('HGET', hash, 'score')
    if score then
      entries[#entries + 1] = score
      entries[#entries + 1] = tag
      redis.call('HDEL', hash, 'score', 'by')
      redis.call('HINCRBY', hash, 'failed', 1)
    end
  end
  if #overdue > 0 then redis.call('ZREM', index, unpack(overdue)) end
  if #entries > 0 then redis.call('ZADD', ready, unpack(entries)) end
  return #overdue
end

local function empty_trash(trash, message)
  local popped = redis.call('ZPOPMIN', trash, limit)
  for i = 1, #popped, 2 do redis.call('UNLINK', message .. popped[i]) end
  return #popped / 2
end

local function first_score(key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2])
end

local reply = {}
local function answer(wait, promoted, recovered, mine)
  reply[#reply + 1] = math.max(0, math.ceil(wait))
  reply[#reply + 1] = promoted
  reply[#reply + 1] = recovered
  reply[#reply + 1] = mine
end

for base = 0, #KEYS - WIDTH, WIDTH do
  local ready, delayed, index = KEYS[base + 1], KEYS[base + 2], KEYS[base + 3]
  local message, bell, meta, trash = KEYS[base + 4], KEYS[base + 5], KEYS[base + 6], KEYS[base + 7]
  if redis.call('EXISTS', ready, delayed, index, trash) == 0 then
    answer(interval, 0, 0, 0)
  else
    local record = redis.call('HMGET', meta, 'sweeper', 'lease', 'swept', 'grace')
    if not take_over and record[1] and record[1] ~= ARGV[1] and tonumber(record[2] or 0) > now then
      answer(record[2] - now + 1, 0, 0, 0)
    else
      local grace_until = tonumber(record[4] or 0)
      local swept = tonumber(record[3] or 0)
      -- Nobody swept for long, or the clock went back: living workers get the time to send a heartbeat first.
      if swept > 0 and (now - swept > longest_gap or now < swept) and redis.call('EXISTS', index) == 1 then
        grace_until = now + grace
      end
      local promoted = promote(ready, delayed, message)
      local recovered = 0
      if grace_until <= now then recovered = recover(ready, index, message) end
      local trashed = empty_trash(trash, message)
      local wait = interval
      if promoted == limit or recovered == limit or trashed == limit then
        wait = 0
      else
        local due = first_score(delayed)
        if due then wait = math.min(wait, due - now) end
        due = first_score(index)
        if due then wait = math.min(wait, math.max(due, grace_until) - now) end
      end
      redis.call('HSET', meta, 'sweeper', ARGV[1], 'lease', text(now + math.max(lease, wait)), 'swept', text(now),
        'next', text(now + wait), 'grace', text(grace_until))
      if redis.call('EXISTS', ready) == 1 then redis.call('ZADD', bell, 0, 'work') end
      answer(wait, promoted, recovered, 1)
    end
  end
end
return reply
