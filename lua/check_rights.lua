#!lua flags=no-writes
-- Tells which commands the caller's user may run. It runs none of them.
-- KEYS  1 queues (zset, read)
-- ARGV  1 JSON: a list of commands, each a list of its words, with '' where a key stands. Each must have all words that the server
--       demands: `acl_check_cmd` does not count them, and a server of today (Redis 7.0, Valkey 9.1) ends on too few.
-- Returns for each of them 1: allowed, 0: refused, -1: the server does not know it. The call itself is refused if the user may not
-- touch the key.
-- Bound: the keys that are given.
local reply = {}
for i, words in ipairs(cjson.decode(ARGV[1])) do
  for j, word in ipairs(words) do
    if word == '' then words[j] = KEYS[1] end
  end
  local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
  reply[i] = not known and -1 or allowed and 1 or 0
end
return reply
