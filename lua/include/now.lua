-- The only reader of TIME, which stands still while a script runs: tests that need a clock replace this file.
local _time
local function server_time()
  _time = _time or redis.call('TIME')
  return _time
end

-- Milliseconds since the epoch on the server's clock.
local function now_ms()
  local time = server_time()
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The same, and in microseconds as text.
local function now_ms_and_us()
  return now_ms(), server_time()[1] .. string.format('%06d', server_time()[2])
end
