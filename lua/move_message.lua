#!lua flags=allow-oom
-- Moves one message that no consumer has yet, ready or delayed, into another queue, where it keeps its priority and its time.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset, read)  4 message (prefix of a hash)  5 wakeup (zset)
--       6 meta (hash)  7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset, read)  10 dead (zset, read)
--       11 trash (zset, read)  12 meta of the target (hash)  13 queue (zset)  14 delayed (zset)  15 message (prefix of a hash)
--       16 wakeup (zset)  17 schedule_wakeup (zset)  18 expiry (zset)
-- ARGV  1 tag  2 its description in the target's events  3 the target's name, packed for events
--       [4 its deduplication, see include/deduplication  5 the key of its id in the target]
-- Returns its tag in the target; '' where it does not wait; 'NOQUEUE' where the target has no record, and nothing has changed.
-- Bound: a fixed number of commands.
-- @include now
-- @include state_keys
-- @include remove_waiting
-- @include enqueue
-- @include deduplication
-- @include tracked_message
-- @include damaged_message
local queue, tag = state_keys(0), ARGV[1]
local record = redis.call('HMGET', KEYS[12], unpack(RECORD))
if not record[1] then return 'NOQUEUE' end
record.description = ARGV[2]
local hash = queue.message .. tag

local function move()
  local score, due = find_waiting(queue, tag)
  -- A place in the queue that no message gets, written by somebody else, tells no priority.
  if not score or not (due or is_whole(score)) then return '' end
  local fields = redis.call('HMGET', hash, 'payload', 'expires', 'ttl_ms', 'rank', 'task_expiry')
  local size = is_bounded(tag) and size_of(hash)
  local expires, ttl_ms = whole(fields[2]), whole(fields[3])
  local expiry_text = (expires and text(expires) or '') .. (ttl_ms and '+' .. text(ttl_ms) or '')
  -- Of a task the time to live was its queue's.
  if fields[5] then expiry_text = text(fields[5] == 'ahead' and expires or now_ms()) .. 't' end
  local track = tracked_by(queue.meta, hash)
  local duplicate = ARGV[4] and duplicate_of(ARGV[4], queue.message)
  local moved = enqueue(KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17], record, fields[1],
    rank_of(whole(score), fields[4]), due or '0', hash, KEYS[18], expiry_text, false)
  remove_waiting(queue, tag, due)
  if size then release_capacity(queue.meta, 1, size, 'gone', now_ms()) end
  redis.call('HINCRBY', queue.meta, 'moved', 1)
  log_event(queue.meta, tag, 'moved', { target = ARGV[3] })
  tell_tracked(track, tag, 'moved')
  if duplicate and string.match(duplicate, '^%S+') == tag then move_duplicate(ARGV[4], moved, ARGV[5], KEYS[15]) end
  return moved
end

local moved = contained(queue, tag, now_ms(), move)
return moved == 'damaged' and '' or moved
