-- @include beside
-- @include message
-- @include release_capacity
-- @include log_event
-- @include groups

-- Finds a message that no consumer has, ready or delayed. Returns the score of its place in the queue, and when it will be due (text;
-- false for a ready one, also where its group holds it); false where it does not wait, or its key is of another type: that is left to the
-- claim and the sweep.
local waiting_in_group = {}
local function find_waiting(queue, tag)
  local score = redis.call('ZSCORE', queue.ready, tag)
  if is_grouped(tag) then
    waiting_in_group[tag] = groups().group_of(queue.message .. tag)
    score = score or redis.call('ZSCORE', beside(queue.meta, 'held'), tag)
  end
  local due = not score and redis.call('ZSCORE', queue.delayed, tag)
  local kept = (score or due) and fields_of(queue.message .. tag, 'score')[1]
  if kept == nil then return false end
  if score then return score, false end
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
  -- One that is delayed has a place where its group waits for it.
  local group = waiting_in_group[tag]
  if group then groups().leave(queue.meta, tag, group) end
end

-- Counts a waiting message out of a queue with limits; its hash is still there.
local function release_capacity_of(queue, tag, now)
  if is_bounded(tag) then release_capacity(queue.meta, 1, size_of(queue.message .. tag), 'gone', now) end
end
