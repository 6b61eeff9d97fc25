#!lua flags=allow-oom
-- Heartbeat of a process: notes that it lives, stores its record, and makes it the leader where there is none that lives.
-- KEYS  1 processes (hash)  2 heartbeats (zset)  3 leader (hash)
-- ARGV  1 process  2 its record ('' = as stored)  3 0 = it does not lead, 1 = it may lead, 2 = it may also ask for connections
--       4 a leader's lease (ms)  5 version of the records that the process knows  6 ms until its next heartbeat, at most
-- Returns { state, epoch, version (only to the leader), how many processes there are, ms until the leader's lease ends, process, record,
-- by how many ms its heartbeat is overdue, ... }. States: leader; follower; unknown (its record is gone: it has to send it). The
-- processes only to a leader that knows another version.
-- Bound: a fixed number of commands, after a step of the clock back 100 processes; where the records have changed, two looks at each process.
-- @include processes
-- How many heartbeats that are promised for later a call looks at.
local MOST_EARLY = 100

local now = now_ms()
local me, record, may_lead, lease = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if record == '' then
  local stored = redis.call('HGET', KEYS[1], me)
  if not stored or is_lost(stored) then return { 'unknown', '0', '', 0, 0 } end
else
  redis.call('HSET', KEYS[1], me, record)
  count_change(KEYS[1])
end
local added = redis.call('ZADD', KEYS[2], text(now + ARGV[6]), me)
-- Where they were lost, each process has to tell again that it lives.
local lost = added == 1 and redis.call('ZCARD', KEYS[2]) == 1

local leader = redis.call('HMGET', KEYS[3], 'process', 'epoch', 'until', 'asks', 'heard', 'resumed')
local heard, leased_until, epoch = tonumber(leader[5]), tonumber(leader[3]) or 0, tonumber(leader[2])
-- Ahead of what a flushed database gave.
epoch = epoch or math.floor(now / 1000)
-- Nobody was heard for longer than followers rest: the server stood still or took no writes, its clock stepped, or nobody was left. Silence
-- counts from now.
local resumed = tonumber(leader[6]) or now
if lost or not heard or heard > now or now - heard > math.min(1.5 * lease, HEARD_MS) then resumed = now end
local leads = leader[1] == me and may_lead ~= '0'
-- After a step of the clock back a lease lasts no longer than before.
local free = leased_until <= now or leased_until > now + LONGEST_LEASE_MS
if not leads and may_lead ~= '0' and (free or (may_lead == '2' and leader[4] ~= '2')) then
  leads, epoch = true, epoch + 1
end
redis.call('HSET', KEYS[3], 'heard', text(now), 'resumed', text(resumed))
if leads then
  leased_until = now + lease
  redis.call('HSET', KEYS[3], 'process', me, 'epoch', text(epoch), 'until', text(leased_until), 'asks', may_lead)
end
local reply = { leads and 'leader' or 'follower', text(epoch), '', redis.call('HLEN', KEYS[1]) - 1, leased_until - now }
if not leads then return reply end

-- What the last process has left, where that was killed, does not stay for ever.
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, LIFE_MS) end
-- The clock went back: the dead do not live until it has caught up.
for _, process in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], text(now + LONGEST_REST_MS), '+inf', 'LIMIT', 0, MOST_EARLY)) do
  redis.call('ZADD', KEYS[2], text(now), process)
end
reply[3] = redis.call('HGET', KEYS[1], 'version') or ''
-- The hash has the field `version` besides.
if reply[3] ~= ARGV[5] then
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    if fields[i] ~= 'version' then
      local due = tonumber(redis.call('ZSCORE', KEYS[2], fields[i])) or now
      reply[#reply + 1] = fields[i]
      reply[#reply + 1] = fields[i + 1]
      reply[#reply + 1] = math.max(0, now - math.max(due, resumed))
    end
  end
end
return reply
