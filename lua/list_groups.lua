#!lua flags=no-writes
-- Lists the message groups of a queue that have messages, in the order of their bytes.
-- KEYS  1 meta (hash)
-- KEYS of its own  groups (zset, read)
-- ARGV  1 group behind which it begins ('' first)  2 groups at most
-- Returns { ARGV 1 of the next call ('' = done), overrides (JSON, '' = none), then per group: its name, how many of its messages are held,
-- how many are ready or in work }.
-- Bound: the groups of ARGV 2, with a fixed number of commands each.
-- @include beside
local members = beside(KEYS[1], 'groups')
local reply = { '', redis.call('HGET', KEYS[1], 'group_rules') or '' }
local after = ARGV[1] ~= '' and '(' .. ARGV[1] .. '\1' or '-'
for _ = 1, tonumber(ARGV[2]) do
  local member = redis.call('ZRANGE', members, after, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
  if not member then
    reply[1] = ''
    break
  end
  local group = string.match(member, '^%Z*')
  reply[1] = group
  reply[#reply + 1] = group
  reply[#reply + 1] = redis.call('ZLEXCOUNT', members, '[' .. group .. '\0h', '(' .. group .. '\0i')
  reply[#reply + 1] = redis.call('ZLEXCOUNT', members, '[' .. group .. '\0r', '(' .. group .. '\0v')
  after = '(' .. group .. '\1'
end
return reply
