-- @include text

-- Outcomes after which a recipient's answer changes nothing any more.
local FINAL = { acked = true, rejected = true, timed_out = true, refused = true, gone = true }

local function resolve(track, events, now)
  redis.call('HSET', track, 'resolved', text(now))
  redis.call('XADD', events, '*', 'recipient', '', 'outcome', 'resolved')
end
