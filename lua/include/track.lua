-- @include text

-- Outcomes after which a recipient's answer changes nothing any more.
local FINAL = { acked = true, rejected = true, timed_out = true, refused = true, gone = true, expired = true, moved = true }

local function resolve(track, events, now)
  redis.call('HSET', track, 'resolved', text(now))
  redis.call('XADD', events, '*', 'recipient', '', 'outcome', 'resolved')
end

-- Notes the outcome of a recipient that had none which is final; the last one resolves the delivery. `now` is a function.
local function report_outcome(track, events, recipient, outcome, now)
  redis.call('HSET', track, 'to:' .. recipient, outcome)
  redis.call('XADD', events, '*', 'recipient', recipient, 'outcome', outcome)
  if FINAL[outcome] and redis.call('HINCRBY', track, 'open', -1) == 0 then resolve(track, events, now()) end
  redis.call('PEXPIRE', events, redis.call('PTTL', track))
end
