#!lua flags=allow-oom
-- Writes or removes a policy, under a new version of the list: who steers a queue by an older one is told to read the list again
-- (`replace_arguments`), and the leader steers all queues by a new one.
-- KEYS  1 policies (hash)
-- ARGV  1 pattern  2 record ('' = remove it)  3 record as it was read ('' = whatever there is)
-- Returns 1; 0 where there is none to remove, or another one than was read.
-- Bound: a fixed number of commands.
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[3] then return 0 end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
elseif redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return 0
end
-- No queue has an empty name: under that stands the version.
redis.call('HINCRBY', KEYS[1], '', 1)
return 1
