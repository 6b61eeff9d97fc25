-- How long a message waits after a failed delivery: RetryPolicy in broker/arguments/retry_policy.py, which has the same function.
local MOST_ATTEMPTS, LONGEST_MS = 1000, 3155760000000

local function nth_delay(policy, attempt, tag)
  attempt = math.min(attempt, MOST_ATTEMPTS)
  local delay = policy.first
  if policy.kind == 'list' then
    delay = policy.delays[attempt]
  elseif policy.kind == 'linear' then
    delay = policy.first + policy.step * (attempt - 1)
  elseif policy.kind == 'exponential' then
    for _ = 2, attempt do delay = math.min(delay * policy.multiplier, policy.max) end
  elseif policy.kind == 'fibonacci' then
    local last = 0
    for _ = 2, attempt do last, delay = delay, math.min(last + delay, policy.max) end
  end
  delay = math.min(delay, policy.max)
  if policy.jitter > 0 then
    delay = delay * (1 - policy.jitter * (tonumber(string.sub(redis.sha1hex(tag .. ' ' .. attempt), 1, 8), 16) / 4294967296))
  end
  return math.floor(delay)
end

-- Whether the policies in `record` differ by the exception.
local function has_errors(record)
  return string.find(record, '\n', 1, true) ~= nil
end

-- The line of `record` that holds for an exception of the class `class`; false: it is not known.
local function policy_of(record, class)
  for name, policy in string.gmatch(record, '\n(%S+) ([^\n]*)') do
    if name == class then return policy end
  end
  return string.match(record, '^[^\n]*')
end

-- The delay (ms) after failed delivery number `attempt` (from 1), by an exception of the class `class` (false: not known), under the
-- policies in `record`; false: it is not tried again; nil: there is no policy for it, or none that was written here.
local function retry_delay(record, attempt, tag, class)
  local kind, first, step, multiplier, max, jitter, total, list, limit =
    string.match(policy_of(record, class), '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  if kind == 'none' then return false end
  for _, number in ipairs({ first or '', step or '', multiplier or '', max or '', jitter or '', total or '' }) do
    if not tonumber(number) then return nil end
  end
  local policy = { kind = kind, first = tonumber(first), step = tonumber(step), multiplier = tonumber(multiplier),
    max = max == '0' and LONGEST_MS or tonumber(max), jitter = tonumber(jitter), delays = {} }
  for delay in string.gmatch(list, '%d+') do policy.delays[#policy.delays + 1] = tonumber(delay) end
  if kind == 'list' and attempt > #policy.delays then return false end
  if tonumber(limit) and attempt > tonumber(limit) then return false end
  total = tonumber(total)
  if total > 0 then
    local waited = 0
    for number = 1, math.min(attempt, MOST_ATTEMPTS) do waited = waited + nth_delay(policy, number, tag) end
    if waited > total then return false end
  end
  return nth_delay(policy, attempt, tag)
end

local FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 50, 5000

-- The pause (ms) before a message that its consumer sent back is ready again, where its queue has no retry policy: none for the first
-- time, then twice as long each time. What cannot be done now must not keep the head of its queue, nor its consumer busy.
local function requeue_pause(attempt)
  if attempt <= 1 then return 0 end
  return math.min(FIRST_PAUSE_MS * 2 ^ math.min(attempt - 2, 10), LONGEST_PAUSE_MS)
end
