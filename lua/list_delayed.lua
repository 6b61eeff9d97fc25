#!lua flags=no-writes
-- Lists delayed messages of one queue, the next due first.
-- KEYS  1 delayed (zset)  2 message (prefix of a hash)
-- ARGV  1 rank of the first  2 entries at most  3 bytes of payload after which no further entry is read
-- Returns how many the queue has, how many were looked at, then per message: tag, eta (ms), payload.
local total = redis.call('ZCARD', KEYS[1])
local found = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1, 'WITHSCORES')
local listed = {total, 0}
local bytes, most = 0, tonumber(ARGV[3])
for i = 1, #found, 2 do
  if bytes >= most then break end
  local payload = redis.call('HGET', KEYS[2] .. found[i], 'payload')
  listed[2] = listed[2] + 1
  if payload then
    bytes = bytes + #payload
    listed[#listed + 1] = found[i]
    listed[#listed + 1] = found[i + 1]
    listed[#listed + 1] = payload
  end
end
return listed
