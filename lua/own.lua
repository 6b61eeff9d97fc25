#!lua flags=allow-oom
-- Passes an exclusive queue on from a connection that is gone.
-- KEYS  1 meta (hash)
-- ARGV  1 the owner that was found gone ('' = it had none)  2 the new owner
-- Returns 1; 0 where the queue has another owner by now, or none.
if (redis.call('HGET', KEYS[1], 'owner') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[2])
return 1
