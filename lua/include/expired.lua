-- @include text

-- Tasks that expired, for the workers: the result of one says REVOKED only when a worker has told its result backend. Each is
-- a copy, so that it does not matter what becomes of the message itself: dead letter, dead-letter exchange, dropped.
local OUTBOX = 3
-- How many stand there at most, and for how long (ms): as long as results last by default. Beyond that the oldest go, so that tasks
-- that no worker has cannot keep out those of a living worker. Each is counted as `unrevoked` in its queue, and the sweep logs it.
local OUTBOX_LENGTH, OUTBOX_AGE = 10000, 86400000

-- The keys of these tasks by name, the first of them being KEYS[base + 1]: Keys.expired in keys.py.
local function outbox_of(base)
  return { tasks = KEYS[base + 1], task = KEYS[base + 2], bell = KEYS[base + 3] }
end

-- Drops tasks that no worker has revoked.
local function drop_unrevoked(outbox, tags)
  for _, tag in ipairs(tags) do
    local meta = redis.call('HGET', outbox.task .. tag, 'meta')
    if meta and redis.call('EXISTS', meta) == 1 then redis.call('HINCRBY', meta, 'unrevoked', 1) end
    redis.call('UNLINK', outbox.task .. tag)
    redis.call('ZREM', outbox.tasks, tag)
  end
end

-- Drops tasks that are older than OUTBOX_AGE, at most 500. Those that a worker has taken, or has left to others, have a later score
-- than their death: `take_expired` looks at these.
local function drop_old(outbox, now)
  drop_unrevoked(outbox, redis.call('ZRANGEBYSCORE', outbox.tasks, '-inf', text(now - OUTBOX_AGE), 'LIMIT', 0, 500))
end

-- Copies the message in `hash` where it may be a task with the header `expires`; its reader knows for certain. `meta` is the key of
-- its queue's record.
local function note_expired(outbox, hash, tag, now, meta)
  local envelope = string.match(redis.call('HGET', hash, 'payload') or '', '^[^\n]*')
  if not (string.find(envelope, '"task":') and string.find(envelope, '"expires": *"')) then return end
  local copy = outbox.task .. tag
  redis.call('COPY', hash, copy, 'REPLACE')
  redis.call('HSET', copy, 'died', text(now), 'meta', meta)
  redis.call('ZADD', outbox.tasks, text(now), tag)
  redis.call('ZADD', outbox.bell, 0, 'due')
  -- The keys outlive the last entry's age: it is counted then.
  for _, key in ipairs({ copy, outbox.tasks, outbox.bell }) do redis.call('PEXPIRE', key, 2 * OUTBOX_AGE) end
  local over = redis.call('ZCARD', outbox.tasks) - OUTBOX_LENGTH
  if over > 0 then drop_unrevoked(outbox, redis.call('ZRANGE', outbox.tasks, 0, over - 1)) end
end
