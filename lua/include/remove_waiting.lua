-- @include release_capacity
-- @include log_event

-- Finds a message that no consumer has, ready or delayed. Returns the score of its place in the queue, and when it will be due (text;
-- false for a ready one); false where it does not wait.
local function find_waiting(queue, tag)
  local score = redis.call('ZSCORE', queue.ready, tag)
  if score then return score, false end
  local due = redis.call('ZSCORE', queue.delayed, tag)
  local kept = due and redis.call('HGET', queue.message .. tag, 'score')
  if not kept then return false end
  return kept, due
end

-- Takes it out of the place in which `find_waiting` found it; it has got another before, or its hash is gone.
local function remove_waiting(queue, tag, due)
  if due then
    redis.call('ZREM', queue.delayed, tag)
  else
    redis.call('ZREM', queue.ready, tag)
    redis.call('ZREM', queue.expiry, tag)
  end
end

-- Counts a waiting message out of a queue with limits; its hash is still there.
local function release_capacity_of(queue, tag, now)
  if is_bounded(tag) then release_capacity(queue.meta, 1, size_of(queue.message .. tag), 'gone', now) end
end
