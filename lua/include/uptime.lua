-- Milliseconds for which the server process has been up at least; nil where it does not say (a permission). The server takes the
-- difference of two whole seconds, so a second that it tells of may have been a moment.
-- Tests that need a clock replace this file as well.
local function up_for_ms()
  local info = redis.pcall('INFO', 'server')
  local seconds = type(info) == 'string' and string.match(info, 'uptime_in_seconds:(%d+)')
  return seconds and math.max(0, seconds - 1) * 1000
end
