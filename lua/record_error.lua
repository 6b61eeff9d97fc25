#!lua flags=allow-oom
-- Notes with which exception the work on claimed messages ended; the settlement follows. It stays with a message over its tries.
-- KEYS  1 message (prefix of a hash)
-- ARGV  triples: tag, claim number, error as broker/consumers/last_error.py packs it; a triple with an old claim number changes nothing
-- Returns how many were noted.
-- Bound: the messages that are given.
-- @include message
local noted = 0
for i = 1, #ARGV, 3 do
  local hash = KEYS[1] .. ARGV[i]
  if fields_of(hash, 'claim')[1] == ARGV[i + 1] then
    redis.call('HSET', hash, 'error', ARGV[i + 2], 'erred', ARGV[i + 1])
    noted = noted + 1
  end
end
return noted
