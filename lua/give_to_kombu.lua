#!lua
-- Moves messages that no consumer has, ready or delayed, from one queue to a list of kombu's own Redis transport.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset, read)  4 message (prefix of a hash)  5 wakeup (zset, read)
--       6 meta (hash)  7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset, read)  10 dead (zset, read)
--       11 trash (zset, read)  12 kombu's list
-- ARGV  1 the target's name, packed for events, then for each message: 2 tag  3 when it is due, as ZSCORE has it, '' = ready
--       4 its text in the list
-- Returns for each message 1, or 0 where it does not wait any more, or for another time.
-- No allow-oom: a full server refuses it before it writes anything.
-- Bound: a fixed number of commands.
-- @include now
-- @include state_keys
-- @include remove_waiting
-- @include tracked_message
local queue = state_keys(0)
local now = now_ms()
local given, count = {}, 0
for i = 2, #ARGV, 3 do
  local tag = ARGV[i]
  local score, due = find_waiting(queue, tag)
  local waits = score and (due or '') == ARGV[i + 1]
  if waits then
    -- Stored first: a script that fails between the two leaves the message twice, and loses none.
    redis.call('LPUSH', KEYS[12], ARGV[i + 2])
    local track = tracked_by(queue.meta, queue.message .. tag)
    release_capacity_of(queue, tag, now)
    redis.call('UNLINK', queue.message .. tag)
    remove_waiting(queue, tag, due)
    log_event(queue.meta, tag, 'moved', { target = ARGV[1] })
    tell_tracked(track, tag, 'moved')
    count = count + 1
  end
  given[#given + 1] = waits and 1 or 0
end
if count > 0 then redis.call('HINCRBY', queue.meta, 'moved', count) end
return given
