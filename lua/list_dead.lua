#!lua flags=no-writes
-- Lists dead messages of one queue, the longest dead first.
-- KEYS  1 dead or dying (zset)  2 message (prefix of a hash)
-- ARGV  1 rank of the first  2 entries at most  3 bytes of payload after which no further entry is read
-- Returns how many there are, how many were looked at, then per message: tag, time of death (ms), payload, reason, failures,
-- claims, rank (0-255, 0 first), error ('' = none is known).
-- @include tag
local total = redis.call('ZCARD', KEYS[1])
local found = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1, 'WITHSCORES')
local listed = { total, 0 }
local bytes, most = 0, tonumber(ARGV[3])
for i = 1, #found, 2 do
  if bytes >= most then break end
  local fields = redis.call('HMGET', KEYS[2] .. found[i], 'payload', 'reason', 'failed', 'claim', 'score', 'rank', 'error')
  listed[2] = listed[2] + 1
  if fields[1] then
    bytes = bytes + #fields[1]
    local rank = fields[6] or text(math.floor((tonumber(fields[5]) or 0) / LEVEL))
    for _, value in ipairs({ found[i], found[i + 1], fields[1], fields[2] or '', fields[3] or '0', fields[4] or '0', rank,
      fields[7] or '' }) do
      listed[#listed + 1] = value
    end
  end
end
return listed
