-- Milliseconds for which the server process has been up, rounded down to a second; nil where it does not say (a permission).
-- Tests that need a clock replace this file as well.
local function up_for_ms()
  local info = redis.pcall('INFO', 'server')
  local seconds = type(info) == 'string' and string.match(info, 'uptime_in_seconds:(%d+)')
  return seconds and seconds * 1000
end
