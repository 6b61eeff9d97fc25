#!lua flags=allow-oom
-- Holds one queue's own keys against the rules: they expire only with a transient queue, and ready messages are noticed.
-- KEYS  1 meta (hash)  2 wakeup (zset)  3 schedule_wakeup (zset)  4 queue (zset)  5 consumers (zset)  6.. delayed (zset),
--       messages_index (zset), expiry (zset), dlx_outbox (zset), dead (zset), trash (zset), held (zset), groups (zset), limited (zset), limited_until (zset), at last consumer (prefix of a hash) and
--       heartbeats (zset, read)
-- ARGV  1 repair (0/1)  2 time without a sweep after which no process can be sweeping a queue with messages (ms), then the fields of meta
--       that hold numbers which begin anew where they are gone
-- Returns per violation: number of the key, rule, what was found; nothing of a queue without a record.
-- Bound: the keys that are given, a few entries of each, and two looks at each of the queue's consumers.
-- @include now
-- @include tag
-- @include living
local repair = ARGV[1] == '1'
local found = {}
local OWN = #KEYS - 2
-- Arguments of the queue, and the bytes that one of them bounds.
local SETTINGS = { 'expires', 'ttl', 'message_ttl', 'limit', 'ageing', 'max_unacked', 'rate', 'burst', 'bytes' }

-- How long a wake-up lives that a client has passed on (ms), where nobody waits: broker/consumers/wakeup_waiter.py.
local PASSED_ON_MS = 60000

local function report(key, rule, what)
  found[#found + 1] = key
  found[#found + 1] = rule
  found[#found + 1] = what
end

for i = 1, OWN do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= (i == 1 and 'hash' or 'zset') then report(i, 'wrong-type', 'a ' .. kind) end
end
if #found > 0 then return found end

local record = redis.call('HMGET', KEYS[1], 'id', 'paused')
if not record[1] then return {} end
-- Reports fields that hold no number with which a script can count: beyond 2^53 the next one is the same.
local function check_numbers(fields, renewed)
  for at, value in ipairs(fields[1] and redis.call('HMGET', KEYS[1], unpack(fields)) or {}) do
    local number = value and tonumber(value)
    if value and not (number and math.abs(number) < 2 ^ 53) then
      report(1, renewed and 'not-a-number' or 'argument-not-a-number', string.sub(fields[at] .. ': ' .. value, 1, 100))
      if repair and renewed then redis.call('HDEL', KEYS[1], fields[at]) end
    end
  end
end

check_numbers({ unpack(ARGV, 3) }, true)
check_numbers(SETTINGS, false)
-- The record of a transient queue that an older release has declared has its time only in `ttl`.
local times = redis.call('HMGET', KEYS[1], 'expires', 'ttl', 'swept')
local expires, swept, paused = tonumber(times[1] or times[2]), tonumber(times[3]), record[2]
if not expires and (times[1] or times[2]) then return found end
for i = 1, OWN do
  local left = redis.call('PTTL', KEYS[i])
  -- In any queue the list of consumers expires by itself, and a wake-up that was passed on.
  local may_expire = i == 5 or ((i == 2 or i == 3) and left <= PASSED_ON_MS)
  if left >= 0 and not expires and not may_expire then
    report(i, 'expires', 'in ' .. left .. ' ms, in a lasting queue')
    if repair then redis.call('PERSIST', KEYS[i]) end
  end
end
if expires and redis.call('PTTL', KEYS[1]) == -1 then
  report(1, 'never-expires', 'the record of a transient queue')
  if repair then redis.call('PEXPIRE', KEYS[1], expires) end
end
local now = now_ms()
local patience = tonumber(ARGV[2])
local first = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
-- An empty queue is not swept. One with a message that is so old was not empty, wherever the message was.
if not paused and first[2] and now - first[2] % PRIORITY_BAND > patience and now - (swept or 0) > patience
  and redis.call('EXISTS', KEYS[2]) == 0 and #living(KEYS[5], KEYS[OWN + 1], KEYS[OWN + 2]) > 0 then
  report(2, 'no-wakeup', 'ready messages and live consumers, but no wakeup, and no sweep that would notify one')
  if repair then
    redis.call('ZADD', KEYS[2], 0, 'work')
    redis.call('ZADD', KEYS[3], 0, 'due')
  end
end
return found
