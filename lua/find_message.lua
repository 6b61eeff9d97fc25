#!lua flags=no-writes
-- Tells where one message stands.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 dlx_outbox (zset)
--       6 dead (zset)
-- KEYS of its own  held (zset, read)
-- ARGV  1 tag
-- Returns { place, its score there, its rank there, envelope, claims, failures, holder, reason, time of death (ms), score that it
-- returns to, error, when it was claimed last (ms), its changed priority }, numbers as text and '' for what there is not; place: 'ready' (also where its group holds it), 'delayed', 'claimed', 'dead', or '' where it is gone.
-- Bound: a fixed number of commands.
-- @include message
local tag = ARGV[1]
local found = fields_of(KEYS[4] .. tag, 'payload', 'claim', 'failed', 'owner', 'reason', 'died', 'score', 'error', 'claimed', 'priority')
for i, place in ipairs({ 'ready', 'delayed', 'claimed', 'message', 'dead', 'dead' }) do
  local score = i ~= 4 and redis.call('ZSCORE', KEYS[i], tag)
  if score then
    local reply = { place, score, tostring(redis.call('ZRANK', KEYS[i], tag)), string.match(found[1] or '', '^[^\n]*') }
    for field = 2, 10 do reply[#reply + 1] = found[field] or '' end
    return reply
  end
end
local held = string.gsub(KEYS[1], 'queue:{', 'held:{', 1)
local score = redis.call('ZSCORE', held, tag)
if not score then return { '' } end
local reply = { 'ready', score, tostring(redis.call('ZCARD', KEYS[1]) + redis.call('ZRANK', held, tag)), string.match(found[1] or '', '^[^\n]*') }
for field = 2, 10 do reply[#reply + 1] = found[field] or '' end
return reply
