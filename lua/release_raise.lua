#!lua flags=allow-oom
-- Ends a command's hold of the raise of the number of shards. A raise that is not done stays noted: another number has to wait for it.
-- KEYS  1 shards_raise (hash)
-- ARGV  1 the command's token  2 whether the raise is done (0/1)
-- Returns 1; 0 where another command holds it.
-- Bound: a fixed number of commands.
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
if ARGV[2] == '1' then
  redis.call('UNLINK', KEYS[1])
else
  redis.call('HDEL', KEYS[1], 'holder', 'until')
end
return 1
