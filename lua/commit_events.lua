#!lua flags=allow-oom
-- Notes what a reader of a queue's lifecycle events has safe, and trims the events that all readers have.
-- KEYS  1 events (stream)  2 events_readers (hash)
-- ARGV  1 reader; '' only trims  2 its position: EPOCH-N, the last event that it has  3 events that it lost, to be added
--       4 trim (0/1)
-- Returns how many events were trimmed in this step: 0 = no more to do. A step trims 10,000 at most, in whole nodes.
-- @include now
-- @include text

local function parts(position)
  local epoch, n = string.match(position, '^(%d+)%-(%d+)')
  return tonumber(epoch), tonumber(n)
end

if ARGV[1] ~= '' then
  local before = redis.call('HGET', KEYS[2], ARGV[1])
  local lost = tonumber(before and string.match(before, '(%d+)$') or 0) + tonumber(ARGV[3])
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ' ' .. text(now_ms()) .. ' ' .. text(lost))
end
if ARGV[4] ~= '1' then return 0 end
local epoch, n
for _, value in ipairs(redis.call('HVALS', KEYS[2])) do
  local e, m = parts(value)
  if not epoch or e < epoch or (e == epoch and m < n) then epoch, n = e, m end
end
if not epoch then return 0 end
return redis.call('XTRIM', KEYS[1], 'MINID', '~', text(epoch) .. '-' .. text(n + 1), 'LIMIT', 10000)
