#!lua flags=allow-oom
-- Trims the event log of a queue that was deleted, or whose events are not written any more, and removes it when its last event is too
-- old: with events that a registered reader has not read after twice that time. What it counted stays as long again, so that the queue's next events go on from there.
-- KEYS  1 meta (hash, read)  2 trash (zset, read)  3 events (stream)  4 events_meta (hash)  5 events_readers (hash)
--       6 event_logs (set)
-- ARGV  1 queue  2 record of its events, as `set_event_log` has it
-- Returns { 1 where the log has ended (else 0), events that went and that a registered reader had not read }.
-- Bound: 5,000 events are trimmed (by whole nodes), 100 events and the readers are looked at.
-- @include trim_events

local events, meta, readers = KEYS[3], KEYS[4], KEYS[5]
-- Events are written; or the messages of a deleted queue still go, and each writes one.
if redis.call('HEXISTS', KEYS[1], 'event_log') == 1 or redis.call('EXISTS', KEYS[2]) == 1 then return { 0, 0 } end
if redis.call('EXISTS', events) == 0 then
  redis.call('SREM', KEYS[6], ARGV[1])
  return { 1, 0 }
end
local log = log_of(KEYS[1], ARGV[2])
if not log then return { 0, 0 } end
local overrun = trim_events(KEYS[1])
local info, stream = redis.call('XINFO', 'STREAM', events), {}
for i = 1, #info, 2 do stream[info[i]] = info[i + 1] end
local epoch, last = string.match(stream['last-generated-id'], '^(%d+)%-(%d+)$')

-- How many events a registered reader has not committed.
local function left_unread()
  local past = tonumber(last) + 1
  return math.min(stream.length, past - math.min(past, first_uncommitted(log, tonumber(epoch), past)))
end

-- When the newest event was written (µs); among the last entries there may be some that somebody else wrote.
local function newest_at()
  for _, entry in ipairs(redis.call('XREVRANGE', events, '+', '-', 'COUNT', 100)) do
    local ts = string.match(entry[2][2], '^[^\t]*\t(%d+)')
    if ts then return tonumber(ts) end
  end
  return 0
end

local unread = left_unread()
local kept_for = unread > 0 and 2 * log.age or log.age
if newest_at() >= (now_ms() - kept_for) * 1000 then return { 0, overrun } end
overrun = overrun + unread
local state = redis.call('HMGET', meta, 'ended', 'removed')
local ended, of_epoch = state[1] or '', epoch .. ':' .. last .. ' '
if not string.find(' ' .. ended, ' ' .. of_epoch, 1, true) then ended = ended .. of_epoch end
redis.call('HSET', meta, 'ended', ended, 'removed', text((state[2] or 0) + stream['entries-added']))
redis.call('HDEL', meta, 'epoch')
redis.call('PEXPIRE', meta, log.age)
redis.call('PEXPIRE', readers, log.age)
redis.call('UNLINK', events)
redis.call('SREM', KEYS[6], ARGV[1])
return { 1, overrun }
