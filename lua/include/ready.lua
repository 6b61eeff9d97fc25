-- @include text
-- @include level

-- The tag of the `published`-th message of the queue `id`; `mark` says what the queue has besides (`.` is nothing).
local function new_tag(now, published, mark, id)
  return string.format('%011x%08x%s%s', now, published % 4294967296, mark, id)
end

-- Whether the events of the queue's message number `published` are to be written: `events.sampled`.
local function is_sampled(published, permille)
  return published % 4294967296 * 919 % 1000 < tonumber(permille)
end

-- Stores a message that is deliverable from `now` on, and rings unless `quiet`. `level` is one priority level's span of scores.
-- Its place comes first: whoever meets a tag without a message drops it, and a message without a place would stay for ever.
local function make_ready(ready, bell, hash, tag, payload, rank, now, level, quiet)
  redis.call('ZADD', ready, text(rank * level + now), tag)
  redis.call('HSET', hash, 'payload', payload)
  if not quiet then redis.call('ZADD', bell, 0, 'work') end
end

-- Takes back what `make_ready` stored.
local function unmake_ready(ready, hash, tag)
  redis.call('UNLINK', hash)
  redis.call('ZREM', ready, tag)
end
