#!lua flags=allow-oom
-- Heartbeat of a process's consumers; finds the dead ones of their queues.
-- KEYS  per queue: queue (zset), delayed (zset), messages_index (zset), message (prefix of a hash), bell (zset), meta (hash),
--       timer (zset), expiry (zset), dying (zset), dead (zset), trash (zset), consumers (zset), consumer (prefix of a hash),
--       interested (zset)
-- ARGV  1 for how long a consumer counts as alive without being heard of (ms), then per queue: consumer, state
-- Returns per queue: known (0 = it is not on the list any more and has to join again), how many others were found dead.
-- @include now
-- @include crew
local now = now_ms()
local life = tonumber(ARGV[1])
local reply = {}
for i = 0, #KEYS / CREW - 1 do
  local crew = crew_of(i * CREW)
  local id, state = ARGV[2 * i + 2], ARGV[2 * i + 3]
  local known = redis.call('EXISTS', crew.consumer .. id)
  if known == 1 then
    redis.call('HSET', crew.consumer .. id, 'state', state, 'heard', text(now))
    alive(crew, id, life, now)
  end
  reply[#reply + 1] = known
  reply[#reply + 1] = bury(crew, now)
end
return reply
