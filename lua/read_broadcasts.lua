#!lua flags=no-writes
-- Reads some broadcasts of a fanout stream: those that matched a subscriber's filter.
-- KEYS  1 stream (stream)
-- ARGV  1 bytes of payload after which no more are read  2.. ids of the broadcasts
-- Returns of each, in this order, its entry, or '' where the stream has dropped it; fewer than were asked for if they are large.
local reply, size = {}, 0
for i = 2, #ARGV do
  if size > tonumber(ARGV[1]) then break end
  local entry = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  reply[#reply + 1] = entry or ''
  if entry then size = size + #entry[2][4] end
end
return reply
