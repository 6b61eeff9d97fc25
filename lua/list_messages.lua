#!lua flags=no-writes
-- Lists messages in one place of a queue, those with the lowest scores first: the next to be delivered, the next due, the longest dead.
-- KEYS  1 queue (zset), delayed (zset), messages_index (zset), dead (zset) or dlx_outbox (zset)  2 message (prefix of a hash)
--       [3 held (zset): its messages stand behind those of the first]
-- ARGV  1 rank of the first  2 entries at most  3 bytes of payload after which no further entry is read, then fields of the messages
-- Returns how many there are, how many were looked at, then per message: tag, its score (ms), payload, those fields ('' = not set).
-- Bound: one page.
local listed = { redis.call('ZCARD', KEYS[1]), 0 }
local first, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = redis.call('ZRANGE', KEYS[1], first, first + count - 1, 'WITHSCORES')
if KEYS[3] then
  local from, left = math.max(0, first - listed[1]), count - #found / 2
  if left > 0 then
    for _, part in ipairs(redis.call('ZRANGE', KEYS[3], from, from + left - 1, 'WITHSCORES')) do found[#found + 1] = part end
  end
  listed[1] = listed[1] + redis.call('ZCARD', KEYS[3])
end
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
