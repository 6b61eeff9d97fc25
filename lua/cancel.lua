#!lua flags=allow-oom
-- Removes messages that no consumer has yet, ready or delayed: for good, or to the dead letters with the reason 'cancelled'.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset, read)  4 message (prefix of a hash)  5 wakeup (zset, read)
--       6 meta (hash)  7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
-- ARGV  1 to the dead letters (0/1)  2 how many dead letters the queue keeps at most, then tags
-- Returns the tags that were there.
-- Bound: the tags that are given, and 500 dead letters that go for them.
-- @include now
-- @include state_keys
-- @include dead_letter
-- @include remove_waiting
local queue = state_keys(0)
local now = now_ms()
local record = redis.call('HMGET', queue.meta, 'ttl', 'dlx')
local removed = {}
for i = 3, #ARGV do
  local tag = ARGV[i]
  local score, due = find_waiting(queue, tag)
  if score then
    removed[#removed + 1] = tag
    if ARGV[1] == '1' then
      dead_letter(queue, record, tag, score, 'cancelled', now)
      remove_waiting(queue, tag, due)
    else
      local track = tracked_by(queue.meta, queue.message .. tag)
      release_capacity_of(queue, tag, now)
      redis.call('UNLINK', queue.message .. tag)
      remove_waiting(queue, tag, due)
      log_event(queue.meta, tag, 'cancelled', {})
      tell_tracked(track, tag, 'gone')
    end
  end
end
if #removed > 0 then
  if ARGV[1] == '1' then
    trim_dead(queue, tonumber(ARGV[2]), 0)
  else
    redis.call('HINCRBY', queue.meta, 'cancelled', #removed)
  end
end
return removed
