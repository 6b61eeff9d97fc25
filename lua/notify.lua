#!lua flags=allow-oom
-- Sends wake-ups: each wakes the client that has waited for it longest. A full server must not leave anybody asleep.
-- KEYS  1.. wakeup (zset), schedule_wakeup (zset), sweep_wakeup (zset) or client_wakeup (zset)
-- ARGV  1 life of a wake-up without a waiter (ms; '' = for ever)
-- Returns how many were notified.
-- Bound: the wakeups that are given.
for _, wakeup in ipairs(KEYS) do
  redis.call('ZADD', wakeup, 0, 'work')
  if ARGV[1] ~= '' then redis.call('PEXPIRE', wakeup, ARGV[1]) end
end
return #KEYS
