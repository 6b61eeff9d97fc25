#!lua flags=allow-oom
-- Puts messages that no dead-letter exchange takes into their queue's own store. A transient queue has none: they are removed.
-- KEYS  1 dlx_outbox (zset)  2 dead (zset)  3 message (prefix of a hash)  4 meta (hash)
-- ARGV  for each message its tag, and the error that kept it from being sent on, as its hash has it; '' for none
-- Returns { how many are kept, how many were removed and counted as discarded }.
-- Bound: the tags that are given.
local transient = tonumber(redis.call('HGET', KEYS[4], 'ttl')) ~= nil
local kept, discarded = 0, 0
for i = 1, #ARGV, 2 do
  local tag, failure = ARGV[i], ARGV[i + 1]
  local died = redis.call('ZSCORE', KEYS[1], tag)
  if died then
    if transient then
      redis.call('UNLINK', KEYS[3] .. tag)
      discarded = discarded + 1
    elseif redis.call('EXISTS', KEYS[3] .. tag) == 1 then
      -- A move that was refused may have taken this away; one that was refused at its end has taken the whole message.
      redis.call('HSETNX', KEYS[3] .. tag, 'died', died)
      if failure ~= '' then redis.call('HSET', KEYS[3] .. tag, 'error', failure) end
      redis.call('ZADD', KEYS[2], died, tag)
      kept = kept + 1
    end
    redis.call('ZREM', KEYS[1], tag)
  end
end
if discarded > 0 then
  redis.call('HINCRBY', KEYS[4], 'discarded', discarded)
  redis.call('HINCRBY', KEYS[4], 'dead_lettered', -discarded)
end
return { kept, discarded }
