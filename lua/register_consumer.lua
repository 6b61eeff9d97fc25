#!lua flags=allow-oom
-- Lists a consumer of a queue, with what is known of it; again: brings its record up to date.
-- KEYS  1 queue (zset, read)  2 delayed (zset, read)  3 messages_index (zset, read)  4 message (prefix of a hash, read)
--       5 wakeup (zset)  6 meta (hash)  7 schedule_wakeup (zset, read)  8 expiry (zset, read)  9 dlx_outbox (zset, read)
--       10 dead (zset, read)  11 trash (zset, read)  12 consumers (zset)  13 consumer (prefix of a hash)  14 with_credit (zset)
--       15 heartbeats (zset, read)  16 leader (hash, read)
-- ARGV  1 consumer  2 priority  3 wants the queue alone (0/1), then the fields of its record: name, value
-- Returns { 'plain' }, or { 'restricted' } where the queue has rules for its consumers. Where no consumer is listed: { 'locked' }, the
-- queue belongs to another connection; { 'exclusive', process }, a consumer of that process has the queue alone; { 'in use', process,
-- ... }, it cannot be had alone.
-- Bound: 6 consumers that may be dead, and 100 in the way that may be so, too. Where one has a priority, or is to become the active
--       one, also a look at each of the queue's consumers.
-- @include now
-- @include consumers
local keys = consumer_keys(0)
local now = now_ms()
local me = ARGV[1]
remove_some_dead(keys, now, me, redis.call('HMGET', keys.meta, 'restricted', 'active', 'exclusive'))
local record = redis.call('HMGET', keys.meta, 'id', 'exclusive', 'owner')
-- A consumer's name is its session's, a dot, and a number.
if record[3] and string.match(record[3], '^%S+') ~= string.match(me, '^[^.]*') then return { 'locked' } end

local MOST_ASKED = 100

-- Names the processes of those consumers in the way.
local function refusal(reason, ids)
  local answer, named = { reason }, {}
  for _, id in ipairs(ids) do
    local process = redis.call('HGET', keys.consumer .. id, 'process') or ''
    if id ~= me and not named[process] then
      answer[#answer + 1] = process
      named[process] = true
    end
  end
  return answer
end

if record[2] and record[2] ~= me and redis.call('ZSCORE', keys.consumers, record[2]) then
  return refusal('exclusive', { record[2] })
end
if ARGV[3] == '1' then
  local others = redis.call('ZRANGE', keys.consumers, 0, MOST_ASKED)
  -- Those who are dead make room for it.
  if remove_dead(keys, now, others) then
    update_consumers(keys)
    others = redis.call('ZRANGE', keys.consumers, 0, MOST_ASKED)
  end
  if others[2] or (others[1] and others[1] ~= me) then return refusal('in use', others) end
end
redis.call('ZADD', keys.consumers, 'NX', text(now), me)
redis.call('HSET', keys.consumer .. me, 'heard', text(now), 'priority', ARGV[2], unpack(ARGV, 4))
keep_listed(keys, me)
-- A transient queue lives as long as its consumers count, however short its life while unused is: silence counts from when the next
-- heartbeat was due.
redis.call('PEXPIRE', keys.meta, text((redis.call('HGET', keys.consumer .. me, 'timeout') or 0) + LONGEST_REST_MS), 'GT')
-- A queue without a record gets none from its consumers.
if not record[1] then return { 'plain' } end
if ARGV[3] == '1' then redis.call('HSET', keys.meta, 'exclusive', me) end
if redis.call('HEXISTS', keys.meta, 'prioritised') == 1 then redis.call('ZADD', keys.with_credit, ARGV[2], me) end
update_consumers(keys, ARGV[2])
return { redis.call('HEXISTS', keys.meta, 'restricted') == 1 and 'restricted' or 'plain' }
