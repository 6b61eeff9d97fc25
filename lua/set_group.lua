#!lua flags=allow-oom
-- Sets what holds for one message group of a queue in place of the queue's own arguments, and admits what it has room for by that.
-- KEYS  1 meta (hash)
-- KEYS of its own  groups (zset)  held (zset)  queue (zset)  delayed (zset)  messages_index (zset, read)  message (prefix of a hash)
--       wakeup (zset)
-- ARGV  1 group  2 its rule (JSON: concurrency, weight, paused; '' = none)  3 most groups with a rule
-- Returns 1; 0 where the queue has no groups, -1 where so many groups have a rule already: nothing has changed then.
-- Bound: the rules of the queue, and 500 messages of the group; the sweep admits the others.
-- @include groups
local MOST = 500
if redis.call('HEXISTS', KEYS[1], 'groups') == 0 then return 0 end
local rules, count = cjson.decode(redis.call('HGET', KEYS[1], 'group_rules') or '{}'), 0
rules[ARGV[1]] = ARGV[2] ~= '' and cjson.decode(ARGV[2]) or nil
for _ in pairs(rules) do count = count + 1 end
if count > tonumber(ARGV[3]) then return -1 end
if count == 0 then
  redis.call('HDEL', KEYS[1], 'group_rules')
else
  redis.call('HSET', KEYS[1], 'group_rules', cjson.encode(rules))
end
local g, admitted = groups().read(KEYS[1]), 0
repeat
  local more = groups().admit(g, ARGV[1])
  admitted = admitted + more
until more == 0 or admitted >= MOST
return 1
