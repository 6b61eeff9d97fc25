-- KEYS of its own  dedup (string)
-- A message with an `x-deduplication-id`, as `broker/arguments/deduplication.py` writes it: scope, how long the key lives (ms), task id, key. The key
-- holds the tag of the message that stands for the id, of a retry '/' and its number, the task's id, and, of one that was moved, the
-- prefix of the messages of the queue that it is in. Whether it still stands is looked up when the next one comes, so nothing has to be
-- taken back where messages end. The scope of a retry is 'renew/' and its number, and behind another '/' the tag of the message that it
-- follows: that one is noted as retried, for the case that its worker dies before the ack. What 'replace/' before a scope is:
-- include/replacement.lua.

-- @include message
-- @include now
-- @include text

local STANDING, RETRY = '^([^/ ]+)/?(%d*) (%S+) ?(.*)$', '^renew/(%d+)/?(%S*)$'

local function parts_of(dedup)
  local scope, ttl, task, key = string.match(dedup, '^(%S+) (%d+) (%S+) (.*)$')
  return string.match(scope, '^replace/.*/(.*)$') or scope, ttl, task, key
end

-- The message that stands for it already, 'tag task'; false without one.
local function duplicate_of(dedup, message)
  local scope, _, own_task, key = parts_of(dedup)
  local value = redis.call('GET', key)
  if not value then return false end
  local tag, number, task, moved_to = string.match(value, STANDING)
  local duplicate = tag .. ' ' .. task
  local retry = tonumber((string.match(scope, RETRY)))
  -- Another run of this task, of a worker that was taken for dead, has sent the retry before.
  if retry then return task == own_task and (tonumber(number) or 0) >= retry and duplicate end
  if scope == 'ttl' then return duplicate end
  local found = fields_of((moved_to == '' and message or moved_to) .. tag, 'payload', 'died', 'claim')
  if not found[1] or found[2] or (scope == 'until-claimed' and found[3]) then return false end
  return duplicate
end

-- How many ms it is until an eta as publishers send it: ms since the epoch, or '+' and ms from now on.
local function delay_of(eta)
  return math.max(string.sub(eta, 1, 1) == '+' and tonumber(eta) or tonumber(eta) - now_ms(), 0)
end

-- Has `tag`, which is due at `eta`, stand for its id. But for the scope `ttl` that lasts for so long after it is due.
local function remember_duplicate(dedup, tag, message, eta)
  local scope, ttl, task, key = parts_of(dedup)
  if scope ~= 'ttl' then ttl = text(ttl + delay_of(eta)) end
  local retry, of = string.match(scope, RETRY)
  redis.call('SET', key, tag .. (retry and '/' .. retry or '') .. ' ' .. task, 'PX', ttl)
  if retry and of ~= '' and fields_of(message .. of, 'payload')[1] then redis.call('HSET', message .. of, 'retried', 1) end
end

-- Lets a message that stands for its id go on doing so where it was, and for the rest of the time where it has gone, unless another
-- does there already: the queue with the id's key `target_key`, and the messages `target_message`.
local function move_duplicate(dedup, moved, target_key, target_message)
  local scope, ttl, task, key = parts_of(dedup)
  local left = math.max(redis.call('PTTL', key), 1)
  local _, number = string.match(redis.call('GET', key) or '', STANDING)
  local standing = moved .. (number and number ~= '' and '/' .. number or '') .. ' ' .. task
  redis.call('SET', key, standing .. ' ' .. target_message, 'PX', left)
  if duplicate_of(scope .. ' ' .. ttl .. ' ' .. task .. ' ' .. target_key, target_message) then return end
  redis.call('SET', target_key, standing, 'PX', left)
end
