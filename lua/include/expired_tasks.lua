-- @include text

-- KEYS of its own  expired (zset)  expired_task (prefix of a hash)  expired_names (zset)  expired_named (prefix of a zset)
--       expired_bytes (zset)  expired_wakeup (zset)
-- Tasks that expired, for the workers: the result of one says REVOKED only when a worker has told its result backend. Each is
-- a copy, so that it does not matter what becomes of the message itself: dead letter, dead-letter exchange, discarded.
local OUTBOX = 6
-- How many stand there at most, and for how long (ms): as long as results last by default. Beyond that the oldest go, so that tasks
-- that no worker has cannot keep out those of a living worker. Each is counted as `unrevoked` in its queue, and the sweep logs it.
local OUTBOX_LENGTH, OUTBOX_AGE = 10000, 86400000
-- How many bytes of envelopes and bodies stand there at most: results of tasks in a chord need the body.
local OUTBOX_BYTES = 67108864
-- Tasks that one call drops at most; what is left over goes with the next ones.
local OUTBOX_DROPS = 500

-- The keys of these tasks by name, the first of them being KEYS[base + 1]: Keys.expired in keys.py.
--   tasks  zset tag -> time of death (ms)        task   prefix of the copies (hashes)
--   names  zset task name -> its latest death    named  prefix of zsets, one a task name: tag -> when a worker may take it
--   bytes  zset tag -> size of its copy, '' -> all of them
-- A worker reads only the names that it has, so tasks of others cost it nothing, however many they are.
local function outbox_of(base)
  return { tasks = KEYS[base + 1], task = KEYS[base + 2], names = KEYS[base + 3], named = KEYS[base + 4], bytes = KEYS[base + 5],
    wakeup = KEYS[base + 6] }
end

-- Takes a task out of the list of its name.
local function forget_named(outbox, name, tag)
  redis.call('ZREM', outbox.named .. name, tag)
  if redis.call('EXISTS', outbox.named .. name) == 0 then redis.call('ZREM', outbox.names, name) end
end

-- Takes a task out of the sum of bytes.
local function forget_bytes(outbox, tag)
  local size = redis.call('ZSCORE', outbox.bytes, tag)
  if not size then return end
  redis.call('ZREM', outbox.bytes, tag)
  redis.call('ZINCRBY', outbox.bytes, '-' .. size, '')
  if redis.call('ZCARD', outbox.bytes) == 1 then redis.call('DEL', outbox.bytes) end
end

-- Takes a task out of the outbox.
local function forget_expired(outbox, tag)
  local name = redis.call('HGET', outbox.task .. tag, 'task_name')
  if name then forget_named(outbox, name, tag) end
  redis.call('UNLINK', outbox.task .. tag)
  redis.call('ZREM', outbox.tasks, tag)
  forget_bytes(outbox, tag)
end

-- Counts a task of the queue whose record is `meta` as one that no worker revokes.
local function count_unrevoked(meta)
  if redis.call('EXISTS', meta) == 1 then redis.call('HINCRBY', meta, 'unrevoked', 1) end
end

-- Drops tasks that no worker has revoked.
local function drop_unrevoked(outbox, tags)
  for _, tag in ipairs(tags) do
    local meta = redis.call('HGET', outbox.task .. tag, 'meta')
    if meta then count_unrevoked(meta) end
    forget_expired(outbox, tag)
  end
end

-- Drops the oldest tasks while there are too many, or too many bytes.
local function drop_over(outbox)
  local over = redis.call('ZCARD', outbox.tasks) - OUTBOX_LENGTH
  if over > 0 then drop_unrevoked(outbox, redis.call('ZRANGE', outbox.tasks, 0, math.min(over, OUTBOX_DROPS) - 1)) end
  for _ = 1, OUTBOX_DROPS do
    if tonumber(redis.call('ZSCORE', outbox.bytes, '') or 0) <= OUTBOX_BYTES then return end
    local oldest = redis.call('ZRANGE', outbox.tasks, 0, 0)
    if #oldest == 0 then return end
    drop_unrevoked(outbox, oldest)
  end
end

-- Drops tasks that are older than OUTBOX_AGE, and what is over the bounds.
local function drop_old(outbox, now)
  drop_unrevoked(outbox, redis.call('ZRANGEBYSCORE', outbox.tasks, '-inf', text(now - OUTBOX_AGE), 'LIMIT', 0, OUTBOX_DROPS))
  drop_over(outbox)
end

-- Returns the name of the task in `envelope`, or nil where that is none with the header `expires`.
local function expiring_task(envelope)
  if not (string.find(envelope, '"task":') and string.find(envelope, '"expires": *"')) then return end
  local readable, data = pcall(cjson.decode, envelope)
  local headers = readable and type(data) == 'table' and data.headers
  if type(headers) == 'table' and type(headers.expires) == 'string' and type(headers.task) == 'string' then return headers.task end
end

-- Copies the message in `hash` where it is such a task; a worker finds out whether that expired, or a TTL was over. `meta` is the
-- key of its queue's record.
local function note_expired(outbox, hash, tag, now, meta)
  local name = expiring_task(string.match(redis.call('HGET', hash, 'payload') or '', '^[^\n]*'))
  if not name then return end
  local copy, named = outbox.task .. tag, outbox.named .. name
  local size = redis.call('HSTRLEN', hash, 'payload') + redis.call('HSTRLEN', hash, 'body')
  if size > OUTBOX_BYTES then
    count_unrevoked(meta)
    return
  end
  redis.call('COPY', hash, copy, 'REPLACE')
  redis.call('HSET', copy, 'died', text(now), 'meta', meta, 'task_name', name)
  redis.call('ZADD', outbox.tasks, text(now), tag)
  forget_bytes(outbox, tag)
  redis.call('ZADD', outbox.bytes, size, tag)
  redis.call('ZINCRBY', outbox.bytes, size, '')
  redis.call('ZADD', named, text(now), tag)
  redis.call('ZADD', outbox.names, text(now), name)
  redis.call('ZADD', outbox.wakeup, 0, 'due')
  -- What is older is left of copies that the server has evicted.
  for _, key in ipairs({ named, outbox.names }) do redis.call('ZREMRANGEBYSCORE', key, '-inf', text(now - 2 * OUTBOX_AGE)) end
  -- The keys outlive the last entry's age: it is counted then.
  for _, key in ipairs({ copy, named, outbox.tasks, outbox.names, outbox.bytes, outbox.wakeup }) do
    redis.call('PEXPIRE', key, 2 * OUTBOX_AGE)
  end
  drop_over(outbox)
end
