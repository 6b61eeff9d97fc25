-- @include now
-- @include text
-- @include processes

-- The timeout of a consumer that has none of its own, and the shortest one: the server may stand still for 3 s unnoticed (ms).
local DEFAULT_TIMEOUT_MS, LEAST_TIMEOUT_MS = 60000, 4000

-- Returns when a consumer is dead that joined at `since`, and its timeout: the heartbeats of `process` have stayed away for that long
-- then. One whose process is in the registry no more was left there by a leader; a new process comes there only with its first
-- heartbeat.
local function dead_at(heartbeats, process, timeout, since, now)
  local due = tonumber(process and redis.call('ZSCORE', heartbeats, process)) or 0
  -- From before a step of the clock back.
  if since > now then since = 0 end
  timeout = math.max(tonumber(timeout) or DEFAULT_TIMEOUT_MS, LEAST_TIMEOUT_MS)
  return math.max(due, since) + timeout, timeout
end

-- Returns from when on silence tells that a process is dead; nil while it does not: no process was heard lately, since the server stood
-- still, its clock stepped, its keys were lost, or all are gone. After that each one that lives has the time for two heartbeats.
local function silence_counts_from(heartbeats, leader, now)
  local registry = redis.call('HMGET', leader, 'heard', 'resumed')
  local heard, resumed = tonumber(registry[1]), tonumber(registry[2])
  local processes = redis.call('ZCARD', heartbeats)
  if not heard or not resumed or heard > now or now - heard > HEARD_MS or processes == 0 then return nil end
  -- As maintenance/heartbeat.py spreads them.
  local rest = math.min(math.max(processes * 20, 2000), 20000)
  return resumed + 2 * rest + 1000
end

-- Returns those of a list's consumers that live, of the first `most` of the list, or of all.
local function living(consumers, record, heartbeats, most)
  local now, found = now_ms(), {}
  local listed = redis.call('ZRANGE', consumers, 0, (most or 0) - 1, 'WITHSCORES')
  for i = 1, #listed, 2 do
    local fields = redis.call('HMGET', record .. listed[i], 'process', 'timeout')
    if dead_at(heartbeats, fields[1], fields[2], tonumber(listed[i + 1]), now) > now then found[#found + 1] = listed[i] end
  end
  return found
end
