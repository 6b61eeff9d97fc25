-- @include room
-- @include event

-- Takes a message that nobody has out of its place, ready or delayed. Returns the score of its place in the queue, and when it
-- would have been due (text; false for a ready one); false where it does not wait.
local function take_waiting(queue, tag)
  local score = redis.call('ZSCORE', queue.ready, tag)
  if score then
    redis.call('ZREM', queue.ready, tag)
    redis.call('ZREM', queue.expiry, tag)
    return score, false
  end
  local due = redis.call('ZSCORE', queue.delayed, tag)
  local kept = due and redis.call('HGET', queue.message .. tag, 'score')
  if not kept then return false end
  redis.call('ZREM', queue.delayed, tag)
  return kept, due
end

-- Counts a waiting message out of a queue with limits; its hash is still there.
local function let_go(queue, tag, now)
  if is_limited(tag) then make_room(queue.meta, 1, size_of(queue.message .. tag), 'gone', now) end
end
