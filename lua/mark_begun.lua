#!lua flags=allow-oom
-- Notes that a consumer begins its work on messages that failed before: if it is lost with them, the loss counts.
-- KEYS  1 message (prefix of a hash)
-- ARGV  pairs: tag, claim number; a pair with an old claim number changes nothing
-- Returns how many were noted.
-- Bound: the pairs that are given.
-- @include message
local noted = 0
for i = 1, #ARGV, 2 do
  local hash = KEYS[1] .. ARGV[i]
  if fields_of(hash, 'claim')[1] == ARGV[i + 1] then
    redis.call('HSET', hash, 'begun', ARGV[i + 1])
    noted = noted + 1
  end
end
return noted
