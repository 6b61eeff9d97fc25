#!lua flags=allow-oom
-- Stores the connections, sessions and queues of a process, and makes it a watcher of the others while there are too few watchers.
-- KEYS  1 processes (hash)  2 watchers (zset)  3 watch_wakeup (prefix of a zset)
-- ARGV  1 process  2 its record ('' = as stored)  3 watchers at most (0 = this process does not watch)  4 a watcher's lease (ms)
--       5 lease of one that is alone, or looks rarely (ms)  6 whether this one looks rarely (1 or 0)  7 version of the records that
--       the process knows, then processes without a connection: they are no watchers any more
-- Returns { state, version, how many processes there are, process, record, ... }. States: watching; alone (there is no other process); standby (there are
-- watchers enough); unknown (its record is gone: it has to send it). A watcher gets the records where it knows another version, a standby those of the watchers.
-- Bound: one look at each process, where the records have changed; and the processes that are given.
-- @include processes
local now = now_ms()
local me, record, most, lease, longest = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if record == '' then
  local stored = redis.call('HGET', KEYS[1], me)
  if not stored or is_lost(stored) then return { 'unknown', '', 0 } end
else
  redis.call('HSET', KEYS[1], me, record)
  count_change(KEYS[1])
  -- A watcher that was alone, or looked rarely, may have a busy process to watch now. Where it is dead, its place is free soon.
  for _, watcher in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. text(now + lease), '+inf')) do
    if watcher ~= me then
      redis.call('ZADD', KEYS[2], text(now + lease), watcher)
      wake(KEYS[3], watcher)
    end
  end
end
-- The record of the last process, where that was killed, does not stay for ever.
redis.call('PEXPIRE', KEYS[1], 86400000)
local version = redis.call('HGET', KEYS[1], 'version') or ''
-- The hash has the field `version` besides.
local processes = redis.call('HLEN', KEYS[1]) - 1
local freed = redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now))
for i = 8, #ARGV do freed = freed + redis.call('ZREM', KEYS[2], ARGV[i]) end
-- After a step of the clock back a lease lasts no longer than before.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '(' .. text(now + longest), '+inf')
if most == 0 then freed = freed + redis.call('ZREM', KEYS[2], me) end
local watches = most > 0 and (redis.call('ZSCORE', KEYS[2], me) or redis.call('ZCARD', KEYS[2]) < most)
if watches then
  -- One that is alone keeps its place until others come: else these may be all watchers, and die together.
  if processes == 1 or ARGV[6] == '1' then lease = longest end
  redis.call('ZADD', KEYS[2], text(now + lease), me)
  redis.call('PEXPIRE', KEYS[2], longest)
end
if freed > 0 and (not watches or redis.call('ZCARD', KEYS[2]) < most) then wake_standbys(KEYS[1], KEYS[2], KEYS[3]) end
if not watches then
  local reply = { 'standby', version, processes }
  for _, watcher in ipairs(redis.call('ZRANGE', KEYS[2], 0, most - 1)) do
    reply[#reply + 1] = watcher
    reply[#reply + 1] = redis.call('HGET', KEYS[1], watcher) or ''
  end
  return reply
end
local reply = { processes == 1 and 'alone' or 'watching', version, processes }
if version ~= ARGV[7] then
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    if fields[i] ~= 'version' then
      reply[#reply + 1] = fields[i]
      reply[#reply + 1] = fields[i + 1]
    end
  end
end
return reply
