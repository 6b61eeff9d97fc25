-- @include now
-- @include text

-- The registry of processes: `processes` is a hash, process -> record, or `lost ` and the record that it had; and the field `version`,
-- which grows with each change.

-- A wake-up may have no listener.
local WATCH_WAKEUP_MS = 60000

local function is_lost(record)
  return string.sub(record, 1, 5) == 'lost '
end

-- Counts a change; the number stays ahead of those that a flushed database gave.
local function count_change(processes)
  local _, us = now_ms_and_us()
  redis.call('HSET', processes, 'version', text(math.max(tonumber(us), (redis.call('HGET', processes, 'version') or 0) + 1)))
end

-- Has one process look whether it is needed as a watcher.
local function wake_a_watcher(watch_wakeup)
  redis.call('ZADD', watch_wakeup, 0, 'watch')
  redis.call('PEXPIRE', watch_wakeup, WATCH_WAKEUP_MS)
end
