-- @include text
-- @include new_tag

-- Reading of the numbers in a message's hash, which somebody else may have written: a script that finds one that is none ends that
-- message alone. `whole` raises, `contained` catches it, and `set_aside` hands the message to the sweep, which makes it a dead letter.

-- Fields that hold whole numbers.
local NUMBERS = { 'score', 'claim', 'failed', 'requeues', 'unbegun', 'seen', 'expires', 'ttl_ms', 'delay', 'rank', 'died' }

-- As HINCRBY takes them: without a zero before other digits.
local function is_whole(value)
  return #value < 18 and (value == '0' or string.find(value, '^%-?[1-9]%d*$') ~= nil)
end

-- The number in a field; nil where there is none.
local function whole(value)
  if not value then return nil end
  return is_whole(value) and tonumber(value) or error('no whole number')
end

-- Takes the fields of a message that should be whole numbers and are none, and leaves it to the sweep, as a delayed one with the
-- reason 'damaged'; the caller then takes it out of its place. `score` is that of its place in the queue, where the caller knows
-- it. Returns false where all are numbers, and changes nothing then.
local function set_aside(meta, delayed, hash, tag, score, now)
  local fields = redis.pcall('HMGET', hash, unpack(NUMBERS))
  if fields.err then return false end
  local odd, told = {}, nil
  for i, name in ipairs(NUMBERS) do
    local value = fields[i]
    if value and not is_whole(value) then
      odd[#odd + 1] = name
      told = told or 'field ' .. name .. ' is no whole number: ' .. string.gsub(string.sub(value, 1, 50), '[^%w%.%+-]', '?')
    end
  end
  if #odd == 0 then return false end
  score = score or fields[1]
  if not (score and is_whole(score)) then score = text(255 * PRIORITY_BAND + now) end
  redis.call('HSET', hash, 'score', score, 'reason', 'damaged', 'error', 'DamagedMessage: ' .. told .. '\t')
  redis.call('ZADD', delayed, text(now), tag)
  local ttl = redis.call('HGET', meta, 'ttl')
  if ttl then redis.pcall('PEXPIRE', delayed, ttl, 'NX') end
  for _, name in ipairs(odd) do
    if name ~= 'score' then redis.call('HDEL', hash, name) end
  end
  redis.call('HDEL', hash, 'owner')
  redis.call('HINCRBY', meta, 'damaged', 1)
  return true
end

-- Calls `work(...)`, which deals with one message of a queue, and returns what it returns (two values at most). 'damaged' where it raised
-- an error and the message has a field that is no number: the message is set aside then. Any other error goes up.
local function contained(queue, tag, now, work, ...)
  local fine, result, more = pcall(work, ...)
  if fine then return result, more end
  local ready = redis.call('ZSCORE', queue.ready, tag)
  if not set_aside(queue.meta, queue.delayed, queue.message .. tag, tag, ready, now) then return error(result, 0) end
  redis.call('ZREM', queue.ready, tag)
  redis.call('ZREM', queue.expiry, tag)
  return 'damaged'
end

local first_failure

-- As `contained`, for one message of several, but no error goes up: it returns 'failed' then. The caller leaves that message where it is,
-- goes on with the others, and raises `first_failure` at its end where somebody calls again for those that are left.
local function attempted(queue, tag, now, work, ...)
  local fine, result, more = pcall(contained, queue, tag, now, work, ...)
  if fine then return result, more end
  first_failure = first_failure or result
  return 'failed'
end

local function raise_failure()
  if first_failure then error(first_failure, 0) end
end
