-- @include text

-- Tasks that expired, for the workers: the result of one says REVOKED only when a worker has told its result backend. Each is
-- a copy, so that it does not matter what becomes of the message itself: dead letter, dead-letter exchange, dropped.
local OUTBOX = 3
-- How many stand there at most, and for how long (ms): as long as results last by default.
local OUTBOX_LENGTH, OUTBOX_AGE = 10000, 86400000

-- The keys of these tasks by name, the first of them being KEYS[base + 1]: Keys.expired in keys.py.
local function outbox_of(base)
  return { tasks = KEYS[base + 1], task = KEYS[base + 2], bell = KEYS[base + 3] }
end

-- Copies the message in `hash` where it may be a task with the header `expires`; its reader knows for certain.
local function note_expired(outbox, hash, tag, now)
  local envelope = string.match(redis.call('HGET', hash, 'payload') or '', '^[^\n]*')
  if not (string.find(envelope, '"task":') and string.find(envelope, '"expires": *"')) then return end
  local copy = outbox.task .. tag
  redis.call('COPY', hash, copy, 'REPLACE')
  redis.call('HSET', copy, 'died', text(now))
  redis.call('PEXPIRE', copy, OUTBOX_AGE)
  redis.call('ZADD', outbox.tasks, text(now), tag)
  redis.call('PEXPIRE', outbox.tasks, OUTBOX_AGE)
  redis.call('ZADD', outbox.bell, 0, 'due')
  redis.call('PEXPIRE', outbox.bell, OUTBOX_AGE)
  local over = redis.call('ZCARD', outbox.tasks) - OUTBOX_LENGTH
  if over > 0 then
    local popped = redis.call('ZPOPMIN', outbox.tasks, over)
    for i = 1, #popped, 2 do redis.call('UNLINK', outbox.task .. popped[i]) end
  end
end
