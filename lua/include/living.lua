-- @include now
-- @include text
-- @include processes

-- The timeout of a consumer that has none of its own (ms).
local DEFAULT_TIMEOUT_MS = 60000

-- Returns when a consumer is dead that joined at `since`, and its timeout: the heartbeats of `process` have stayed away for that long
-- then, since `resumed` at least. One whose process is in the registry no more was left there by a leader; a new process comes there
-- only with its first heartbeat.
local function dead_at(heartbeats, process, timeout, since, now, resumed)
  local due = tonumber(process and redis.call('ZSCORE', heartbeats, process)) or 0
  -- From before a step of the clock back.
  if since > now then since = 0 end
  timeout = tonumber(timeout) or DEFAULT_TIMEOUT_MS
  return math.max(due, since, resumed) + timeout, timeout
end

-- Returns how many of the consumers of a list live.
local function count_living(consumers, record, heartbeats)
  local now, count = now_ms(), 0
  local listed = redis.call('ZRANGE', consumers, 0, -1, 'WITHSCORES')
  for i = 1, #listed, 2 do
    local fields = redis.call('HMGET', record .. listed[i], 'process', 'timeout')
    if dead_at(heartbeats, fields[1], fields[2], tonumber(listed[i + 1]), now, 0) > now then count = count + 1 end
  end
  return count
end
