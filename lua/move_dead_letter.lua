#!lua flags=allow-oom
-- Moves one dead message into queues: on to its dead-letter exchange, or back to work. One step, so nothing is lost or doubled. A
-- failure in its middle loses nothing; where there are several targets, those before it may get the message once more.
-- KEYS  1 dlx_outbox (zset) or dead (zset)  2 message (prefix of a hash)  3 meta (hash), then per target queue: meta (hash),
--       queue (zset), delayed (zset), message (prefix of a hash), wakeup (zset), schedule_wakeup (zset), expiry (zset)
-- ARGV  1 tag  2 payload as it goes on  3 counter of the source's record that counts it  4 keep the tag (0/1)
--       5 its expiry in the targets, as publishers send it  6 its description in the targets' events
--       then the names of the targets, packed for events
-- Returns the number of targets that took it; -1 where the message is no longer there; -2 where no target has a record, and
-- nothing has changed then.
-- Bound: the targets that are given.
-- @include enqueue
-- @include damaged_message
local TARGET = 7
-- Milliseconds that a copy lives on its way.
local MOVING_MS = 60000
local tag = ARGV[1]
local source = KEYS[2] .. tag
if not redis.call('ZSCORE', KEYS[1], tag) then return -1 end
local targets = {}
for base = 3, #KEYS - TARGET, TARGET do
  local record = redis.call('HMGET', KEYS[base + 1], unpack(RECORD))
  record.description = ARGV[6]
  if record[1] then targets[#targets + 1] = { base = base, record = record } end
end
if #targets == 0 then return -2 end
-- A script that failed while it put the message here may have left it without its score.
local place = redis.call('HMGET', source, 'score', 'rank')
local rank = rank_of(place[1] and is_whole(place[1]) and tonumber(place[1]) or 255 * PRIORITY_BAND, place[2])
local function put(target, staged)
  local base = target.base
  enqueue(KEYS[base + 1], KEYS[base + 2], KEYS[base + 3], KEYS[base + 4], KEYS[base + 5], KEYS[base + 6], target.record,
    ARGV[2], rank, '0', staged, KEYS[base + 7], ARGV[5], ARGV[4] == '1' and tag)
end
local moved_to = {}
for i, target in ipairs(targets) do
  if ARGV[4] == '1' and KEYS[target.base + 4] == KEYS[2] then
    -- Back into its own queue: it is dead up to the last step. Claims go on being counted: a number that came again would be that of
    -- an old delivery.
    put(target, false)
    redis.call('ZREM', KEYS[1], tag)
    redis.call('HDEL', source, 'score', 'delay', fields_of_deliveries())
  elseif i < #targets then
    -- What a failure leaves of a copy goes by itself.
    local copy = KEYS[2] .. 'moving.' .. tag .. '.' .. i
    redis.call('COPY', source, copy, 'REPLACE')
    redis.call('PEXPIRE', copy, MOVING_MS)
    redis.call('HDEL', copy, 'died')
    put(target, copy)
  else
    redis.call('HDEL', source, 'died')
    put(target, source)
  end
  if ARGV[4] ~= '1' then moved_to[#moved_to + 1] = ARGV[6 + (target.base - 3) / TARGET + 1] end
end
redis.call('ZREM', KEYS[1], tag)
local taken = #targets
redis.call('HINCRBY', KEYS[3], ARGV[3], 1)
if ARGV[4] == '1' then log_event(KEYS[3], tag, 'replayed', {}) else log_event(KEYS[3], tag, 'moved', { target = table.concat(moved_to, ',') }) end
return taken
