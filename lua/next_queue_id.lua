#!lua flags=allow-oom
-- Draws the next queue id. Apart from `declare`, whose keys are another slot's on a cluster.
-- KEYS  1 queue_ids (string)
-- ARGV  none
-- Returns the id.
return redis.call('INCR', KEYS[1])
