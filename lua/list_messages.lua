#!lua flags=no-writes
-- Lists messages in one place of a queue, those with the lowest scores first: the next to be delivered, the next due, the longest dead.
-- KEYS  1 queue (zset), delayed (zset), messages_index (zset), dead (zset) or dlx_outbox (zset)  2 message (prefix of a hash)
-- ARGV  1 rank of the first  2 entries at most  3 bytes of payload after which no further entry is read, then fields of the messages
-- Returns how many there are, how many were looked at, then per message: tag, its score (ms), payload, those fields ('' = not set).
-- Bound: one page.
local listed = { redis.call('ZCARD', KEYS[1]), 0 }
local found = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1, 'WITHSCORES')
local bytes, most = 0, tonumber(ARGV[3])
for i = 1, #found, 2 do
  if bytes >= most then break end
  local fields = redis.call('HMGET', KEYS[2] .. found[i], 'payload', unpack(ARGV, 4))
  listed[2] = listed[2] + 1
  if fields[1] then
    bytes = bytes + #fields[1]
    listed[#listed + 1] = found[i]
    listed[#listed + 1] = found[i + 1]
    for _, value in ipairs(fields) do listed[#listed + 1] = value or '' end
  end
end
return listed
