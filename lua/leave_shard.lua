#!lua flags=allow-oom
-- Takes messages that no consumer has out of a queue that goes to another shard, and returns what they are. They are listed in
-- `leaving_shard` until they are stored there; what a killed command has left in the list comes first.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset, read)  4 message (prefix of a hash)  5 wakeup (zset, read)
--       6 meta (hash)  7 schedule_wakeup (zset, read)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
--       12 leaving_shard (hash)  13 leaving_message (prefix of a hash)
-- ARGV  1 how many messages at most  2 bytes at most
-- Returns for each message { tag, the set that it was in, its score there, field, value, ... }; no fields where its hash is gone.
-- Bound: the messages of ARGV 1.
-- @include beside
-- @include state_keys
-- @include message
-- @include groups
local queue, leaving, message, most, bytes = state_keys(0), KEYS[12], KEYS[13], tonumber(ARGV[1]), tonumber(ARGV[2])
local places = redis.call('HGETALL', leaving)
if #places == 0 then
  queue.held = beside(queue.meta, 'held')
  for _, name in ipairs({ 'held', 'ready', 'delayed', 'dlx_outbox', 'dead' }) do
    local room = most - #places / 2
    -- The last ones first: consumers go on in order with those before them.
    local found = room > 0 and redis.call('ZRANGE', queue[name], 0, room - 1, 'REV', 'WITHSCORES') or {}
    for i = 1, #found, 2 do
      local tag, place = found[i], (name == 'held' and 'ready' or name) .. ' ' .. found[i + 1]
      local group = is_grouped(tag) and groups().group_of(queue.message .. tag)
      -- Listed first: a script that fails in between leaves it in both. It goes where its hash is.
      redis.call('HSET', leaving, tag, place)
      if is_there(queue.message .. tag) then redis.call('RENAME', queue.message .. tag, message .. tag) end
      redis.call('ZREM', queue[name], tag)
      redis.call('ZREM', queue.expiry, tag)
      if group then groups().leave(queue.meta, tag, group) end
      places[#places + 1], places[#places + 2] = tag, place
    end
    if (name == 'held' or name == 'ready' or name == 'delayed') and #found > 0 then redis.call('HINCRBY', queue.meta, 'moved', #found / 2) end
  end
end
local reply = {}
for i = 1, #places, 2 do
  if bytes <= 0 then break end
  local fields = redis.call('HGETALL', message .. places[i])
  for f = 2, #fields, 2 do bytes = bytes - #fields[f] end
  local name, score = string.match(places[i + 1], '^(%S+) (%S+)$')
  reply[#reply + 1] = { places[i], name, score, unpack(fields) }
end
return reply
