#!lua flags=allow-oom
-- Writes a queue's record, or tells how the one that stands differs. A record with the field `assumed` was written by somebody
-- who did not know the queue's arguments: the first one who does replaces them, under a new id: what others have read of a record
-- is right as long as its id stands (`broker/exchanges/known_queues.py`).
-- KEYS  1 meta (hash)  2 queue (zset)  3 delayed (zset)  4 messages_index (zset)  5 with_credit (zset)  6 expiry (zset)
--       7 dlx_outbox (zset)  8 dead (zset)  9 wakeup (zset)  10 schedule_wakeup (zset)  11 consumers (zset)
-- ARGV  1 arguments (text)  2 how long an unused transient queue lives (ms, '' = lasting)  3 queue id ('' = not drawn yet)  4 format version,
--       then the fields that the scripts read: name, value
-- Returns { status, id that stands, arguments that stand, ready, delayed, unacked, arguments that were declared, '' where these stand };
-- status: 'created', 'exists', 'differs' from what was declared, or 'id' where the record is new and an id has to be drawn first; or
-- 'remains' where that is so, and an expired transient queue of this name has left messages, which have to go first.
-- Bound: the fields and keys that are given.
-- @include beside
-- @include text
-- @include keys_ttl
local CONSUMED_MS = 60000

-- Whether messages are left of a transient queue: their sets expire. Those of a lasting one whose record was lost stay.
local function has_remains()
  for _, i in ipairs({ 2, 3, 4, 6, 7, 8 }) do
    if redis.call('PTTL', KEYS[i]) >= 0 then return true end
  end
  return false
end

local record = redis.call('HMGET', KEYS[1], 'id', 'arguments', 'assumed', 'expires', 'declared', 'groups', 'limiters')
local status = 'exists'
local ttl
local assumes = ARGV[5] == 'assumed'
local fields = { 'arguments', ARGV[1], 'format', ARGV[4] }
for i = 5, #ARGV do fields[#fields + 1] = ARGV[i] end
if ARGV[2] ~= '' then
  ttl = keys_ttl(ARGV[2])
  for _, item in ipairs({ 'expires', ARGV[2], 'ttl', ttl }) do fields[#fields + 1] = item end
end
if not record[1] then
  if ARGV[3] == '' then return { has_remains() and 'remains' or 'id', '', '', 0, 0, 0, '' } end
  redis.call('HSET', KEYS[1], 'id', ARGV[3], unpack(fields))
  -- What a transient queue of this name has left would vanish by its TTL, with the messages that are added to it.
  if ARGV[2] == '' then
    for i = 2, #KEYS do redis.call('PERSIST', KEYS[i]) end
  end
  status = 'created'
  record[1] = ARGV[3]
elseif record[3] and not assumes then
  if ARGV[3] == '' then return { 'id', '', '', 0, 0, 0, '' } end
  redis.call('HSET', KEYS[1], 'id', ARGV[3], unpack(fields))
  redis.call('HDEL', KEYS[1], 'assumed', 'declared')
  record[1], record[2], record[5] = ARGV[3], ARGV[1], nil
  status = 'created'
elseif (record[5] or record[2]) ~= ARGV[1] and not assumes then
  status = 'differs'
end
if ARGV[2] ~= '' and status ~= 'differs' and not assumes then
  -- An older release has declared it, and gave all keys the life of the record.
  if status == 'exists' and not record[4] then redis.call('HSET', KEYS[1], 'expires', ARGV[2], 'ttl', ttl) end
  if redis.call('EXISTS', KEYS[11]) == 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  else
    -- One that is consumed lives as long as its consumers (include/consumers.lua), which extend a new record within this time.
    local life = status == 'created' and math.max(ARGV[2], CONSUMED_MS) or tonumber(ARGV[2])
    if redis.call('PTTL', KEYS[1]) < life then redis.call('PEXPIRE', KEYS[1], text(life)) end
  end
end
if status ~= 'differs' and redis.call('HEXISTS', KEYS[1], 'restricted') == 1 then
  -- As lua/include/consumers.lua has it: plain claims leave the queue alone from now on.
  redis.call('ZADD', KEYS[5], '-inf', '')
  if ttl then redis.call('PEXPIRE', KEYS[5], ttl) end
end
local held = (record[6] or record[7]) and redis.call('ZCARD', beside(KEYS[1], 'held')) or 0
return {
  status, record[1], record[2] or ARGV[1], redis.call('ZCARD', KEYS[2]) + held, redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4]),
  record[5] or '',
}
