-- Milliseconds since the epoch on the server's clock. The only reader of TIME: tests that need a clock replace this file.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The same, and in microseconds as text.
local function now_ms_and_us()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000), time[1] .. string.format('%06d', time[2])
end
