#!lua flags=allow-oom
-- Deletes a queue: its record at once, its messages into the trash, which the caller then empties. Or, with ARGV 5, lets the record
-- expire so soon, unless the queue is used again.
-- KEYS  1 trash (zset)  2 meta (hash)  3 wakeup (zset)  4 schedule_wakeup (zset)  5 consumers (zset)  6 consumer (prefix of a hash)
--       7 heartbeats (zset, read)  8 expiry (zset)  9 with_credit (zset)  10 queue (zset)  11.. delayed (zset),
--       messages_index (zset), dlx_outbox (zset), dead (zset), 15 held (zset)  16 groups (zset)
-- KEYS of its own  limited (zset)  limited_until (zset)  group_times (zset)
-- ARGV  1 only if unused (0/1)  2 only if no message is ready or delayed (0/1)  3 only if it has no record any more (0/1)  4 only if its record has this id
--       ('' = whatever it has)  [5 for how long the record stays (ms)]
-- Returns { 1, ready messages that went with it, was it transient (0/1), record of its events or '' }; { 0, 0, 0, '' } where a
-- condition forbids it.
-- Bound: a few looks at each of the queue's consumers; a RENAME costs the same however many messages there are.
-- @include beside
-- @include living
-- @include to_trash
-- @include tell_processes
if ARGV[3] == '1' and redis.call('HEXISTS', KEYS[2], 'id') == 1 then return { 0, 0, 0, '' } end
if ARGV[4] ~= '' and redis.call('HGET', KEYS[2], 'id') ~= ARGV[4] then return { 0, 0, 0, '' } end
if ARGV[1] == '1' and #living(KEYS[5], KEYS[6], KEYS[7]) > 0 then return { 0, 0, 0, '' } end
local ready = redis.call('ZCARD', KEYS[10]) + redis.call('ZCARD', KEYS[15])
if ARGV[2] == '1' and (ready > 0 or redis.call('EXISTS', KEYS[11]) == 1) then return { 0, 0, 0, '' } end
if ARGV[5] then
  redis.call('PEXPIRE', KEYS[2], ARGV[5], 'LT')
  return { 0, 0, 0, '' }
end
local transient = redis.call('HEXISTS', KEYS[2], 'ttl')
local event_log = redis.call('HGET', KEYS[2], 'event_log') or ''
to_trash(KEYS[1], { unpack(KEYS, 10, 15) })
local consumers = redis.call('ZRANGE', KEYS[5], 0, -1)
for _, id in ipairs(consumers) do
  local record, wakeup = KEYS[6] .. id, KEYS[3] .. ':'
  redis.call('UNLINK', wakeup .. (redis.call('HGET', record, 'priority') or '0'), wakeup .. id, record)
end
redis.call('UNLINK', redis.call('HGET', KEYS[2], 'wakeup') or KEYS[3], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[8], KEYS[9], KEYS[16],
  beside(KEYS[2], 'limited'), beside(KEYS[2], 'limited_until'), beside(KEYS[2], 'group_times'))
-- It tells its consumer that the queue is gone, or lists it again.
tell_processes(KEYS[4], consumers, 10000)
return { 1, ready, transient, event_log }
