-- @include now
-- @include text

-- The registry of processes: `processes` is a hash, process -> record, or `lost ` and the record that it had; and the field `version`,
-- which grows with each change. `heartbeats` has the time by which each one's next heartbeat is due. `leader` says who does what any process may do.

-- For how long these keys stay without a heartbeat, and a leader's lease at most.
local LIFE_MS, LONGEST_LEASE_MS = 86400000, 10000
-- A heartbeat is promised for less than this (ms).
local LONGEST_REST_MS = 25000
-- Some process is heard that often, where any lives (ms).
local HEARD_MS = 3000

local function is_lost(record)
  return string.sub(record, 1, 5) == 'lost '
end

-- Counts a change; the number stays ahead of those that a flushed database gave.
local function count_change(processes)
  local _, us = now_ms_and_us()
  redis.call('HSET', processes, 'version', text(math.max(tonumber(us), (redis.call('HGET', processes, 'version') or 0) + 1)))
end
