#!lua flags=allow-oom
-- Gives an exclusive queue an owner: its first one, or the next one after a connection that is gone.
-- KEYS  1 meta (hash)  2 with_credit (zset)
-- ARGV  1 the owner that was found gone ('' = it had none)  2 the new owner
-- Returns 1; 0 where the queue has another owner by now, or none.
-- Bound: a fixed number of commands.
if (redis.call('HGET', KEYS[1], 'owner') or '') ~= ARGV[1] then return 0 end
-- As declare.lua has it: only `claim_restricted` takes from an owned queue, since it looks who claims.
redis.call('ZADD', KEYS[2], '-inf', '')
local ttl_ms = redis.call('HGET', KEYS[1], 'ttl')
if ttl_ms then redis.call('PEXPIRE', KEYS[2], ttl_ms) end
redis.call('HSET', KEYS[1], 'restricted', 'declared', 'owner', ARGV[2])
return 1
