#!lua flags=allow-oom
-- Moves the deadlines of held messages on, and notes the visibility timeout for the process that sweeps their queues.
-- KEYS  per queue: messages_index (zset), message (prefix of a hash, read), meta (hash)
-- ARGV  1 visibility timeout (ms), then per queue: how many pairs follow, and the pairs: tag, claim number
-- Returns the tags that this process no longer holds: another claim came, or they are settled.
-- Bound: the pairs that are given.
-- @include now
-- @include timeouts
local now, timeout = now_ms(), tonumber(ARGV[1])
local deadline = text(now + timeout)
local lost = {}
local at = 2
for q = 1, #KEYS, 3 do
  local index = {}
  local count = tonumber(ARGV[at])
  for i = at + 1, at + 2 * count, 2 do
    local tag = ARGV[i]
    local fields = fields_of(KEYS[q + 1] .. tag, 'claim', 'owner')
    if fields[1] == ARGV[i + 1] and fields[2] then
      index[#index + 1] = deadline
      index[#index + 1] = tag
    else
      lost[#lost + 1] = tag
    end
  end
  if #index > 0 then
    redis.call('ZADD', KEYS[q], 'XX', unpack(index))
    note_timeout(KEYS[q + 2], timeout, now)
  end
  at = at + 1 + 2 * count
end
return lost
