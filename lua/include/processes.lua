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

-- Has a process look at the registry. Each has a wake-up of its own: a new process would take a common one itself.
local function wake(watch_wakeup, process)
  redis.call('ZADD', watch_wakeup .. process, 0, 'watch')
  redis.call('PEXPIRE', watch_wakeup .. process, WATCH_WAKEUP_MS)
end

-- Has two processes of a few random ones look whether there is a watcher too few: one of them may have died as well.
local function wake_standbys(processes, watchers, watch_wakeup)
  local woken = 0
  for _, process in ipairs(redis.call('HRANDFIELD', processes, 10)) do
    if woken < 2 and process ~= 'version' and not redis.call('ZSCORE', watchers, process) then
      wake(watch_wakeup, process)
      woken = woken + 1
    end
  end
end
