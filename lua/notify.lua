#!lua flags=allow-oom
-- Rings bells: each wakes the client that has waited for it longest. A full server must not leave anybody asleep.
-- KEYS  1.. bell (zset), bell_tended (zset), bell_expired (zset) or wake (zset)
-- ARGV  1 life of a bell that nobody waits for (ms; '' = for ever)
-- Returns how many were rung.
for _, bell in ipairs(KEYS) do
  redis.call('ZADD', bell, 0, 'work')
  if ARGV[1] ~= '' then redis.call('PEXPIRE', bell, ARGV[1]) end
end
return #KEYS
