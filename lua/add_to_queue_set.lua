#!lua flags=allow-oom
-- Enters a queue into a set of queues. Declaring does it, and a worker has to be able to declare: it is what frees memory.
-- KEYS  1 always_swept (set) or event_logs (set)
-- ARGV  1 queue
-- Returns 1 for a queue that was not in it.
-- Bound: a fixed number of commands.
return redis.call('SADD', KEYS[1], ARGV[1])
