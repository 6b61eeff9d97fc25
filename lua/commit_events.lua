#!lua flags=allow-oom
-- Notes what a reader of a queue's lifecycle events has safe, and trims the events that all readers have.
-- KEYS  1 events (stream)  2 events_readers (hash)
-- ARGV  1 reader; '' only trims  2 its position: EPOCH-N, the last event that it has; an earlier one than noted changes nothing
--       3 events that it lost, to be added  4 trim (0/1)  5 whose reader it is, such as the id of a folder; '' leaves that
-- Returns how many events were trimmed in this step: 0 = no more to do. A step trims 10,000 at most, in whole nodes. An error
-- 'OWNED' where the reader is of another owner. Nothing is noted where there is no stream any more. A record of a reader that
-- somebody else wrote is written anew by its reader, and until then nothing is trimmed: it does not say what that one has.
-- Bound: the readers of the queue's events, and 10,000 events that are trimmed, by whole nodes.
-- @include now
-- @include text

local function parts(position)
  local epoch, n = string.match(position, '^(%d+)%-(%d+)')
  return tonumber(epoch), tonumber(n)
end

local function is_before(position, other)
  local epoch, n = parts(position)
  local later_epoch, later_n = parts(other)
  return epoch < later_epoch or (epoch == later_epoch and n < later_n)
end

if ARGV[1] ~= '' and redis.call('EXISTS', KEYS[1]) == 1 then
  local position, lost, owner = ARGV[2], tonumber(ARGV[3]), ARGV[5]
  local before = redis.call('HGET', KEYS[2], ARGV[1])
  local known, lost_before, known_owner = string.match(before or '', '^(%d+%-%d+) %d+ (%d+) ?(.*)$')
  if known then
    if owner ~= '' and known_owner ~= '' and owner ~= known_owner then return redis.error_reply('OWNED by ' .. known_owner) end
    if is_before(position, known) then position = known end
    lost = lost + tonumber(lost_before)
    if owner == '' then owner = known_owner end
  end
  redis.call('HSET', KEYS[2], ARGV[1], position .. ' ' .. text(now_ms()) .. ' ' .. text(lost) .. ' ' .. owner)
end
if ARGV[4] ~= '1' then return 0 end
local epoch, n
for _, value in ipairs(redis.call('HVALS', KEYS[2])) do
  local e, m = parts(value)
  if not e then return 0 end
  if not epoch or e < epoch or (e == epoch and m < n) then epoch, n = e, m end
end
if not epoch then return 0 end
return redis.call('XTRIM', KEYS[1], 'MINID', '~', text(epoch) .. '-' .. text(n + 1), 'LIMIT', 10000)
