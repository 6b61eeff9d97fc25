#!lua flags=no-writes
-- Reads what an operator sees of a queue, at one moment. It takes up to 256 steps, one for each priority that is in the queue.
-- KEYS  1 meta (hash)  2 queue (zset)  3 delayed (zset)  4 messages_index (zset)  5 message (prefix of a hash)  6 dlx_outbox (zset)
--       7 dead (zset)  8 consumers (zset)  9 consumer (prefix of a hash)  10 heartbeats (zset)
-- KEYS of its own  held (zset, read)
-- ARGV  none
-- Returns { id, ready, delayed, unacked, dead, live consumers, ms since the oldest ready message became ready, reason of the pause,
-- its end (ms, '0' = none), published, delivered, rejected publishes, arguments (JSON), bytes }, texts '' for what there is not; an id
-- of '' means that there is no such queue. Of a queue whose messages age, the oldest is the one that is next.
-- Bound: 256 steps, one for each priority, and two looks at each of the queue's consumers.
-- @include beside
-- @include now
-- @include living
-- @include ageing
local now = now_ms()
local meta = redis.call('HMGET', KEYS[1], 'id', 'ageing', 'paused', 'paused_until', 'published', 'delivered', 'rejected', 'arguments',
  'bytes', 'groups', 'limiters')
local held = beside(KEYS[1], 'held')
-- Priorities, of which each has its band of scores.
local RANKS = 256
local oldest
local function look(place)
  local from = '-inf'
  for _ = 1, RANKS do
    local found = redis.call('ZRANGE', place, from, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    local score = tonumber(found[2])
    if not score then break end
    local rank = rank_of(score, meta[2] and (redis.call('HGET', KEYS[5] .. found[1], 'rank') or 0))
    -- A score that no message gets is somebody else's, and tells of no time.
    if rank < 0 or rank >= RANKS then break end
    oldest = math.min(oldest or now, score - rank * level_of(meta[2]))
    if meta[2] then break end
    from = text((rank + 1) * PRIORITY_BAND)
  end
end
look(KEYS[2])
if meta[10] or meta[11] then look(held) end
local ended = meta[4] and meta[4] ~= '0' and tonumber(meta[4]) <= now
return {
  meta[1] or '', redis.call('ZCARD', KEYS[2]) + ((meta[10] or meta[11]) and redis.call('ZCARD', held) or 0), redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4]),
  redis.call('ZCARD', KEYS[6]) + redis.call('ZCARD', KEYS[7]), #living(KEYS[8], KEYS[9], KEYS[10]),
  oldest and text(now - oldest) or '', not ended and meta[3] or '', meta[4] or '0', meta[5] or '0', meta[6] or '0',
  meta[7] or '0', meta[8] or '', meta[9] or '0',
}
