-- @include text

-- One priority level spans 10^13 ms, so that no age of a message ever crosses into the next level.
local LEVEL = 1e13

-- The tag of the `published`-th message of the queue `id`; `mark` says what the queue has besides (`.` is nothing).
local function new_tag(now, published, mark, id)
  return string.format('%011x%08x%s%s', now, published % 4294967296, mark, id)
end

-- Stores a message that is deliverable from `now` on, and rings.
local function make_ready(ready, bell, hash, tag, payload, rank, now)
  redis.call('HSET', hash, 'payload', payload)
  redis.call('ZADD', ready, text(rank * LEVEL + now), tag)
  redis.call('ZADD', bell, 0, 'work')
end
