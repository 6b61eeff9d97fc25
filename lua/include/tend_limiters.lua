-- @include tend_groups

-- Limiters that one pass looks at, whose time has come.
local MOST_DUE = 50
-- Times that are noted anew after a step of the clock back; others wait for the next step, or for the clock.
local MOST_AHEAD = 1000

-- Admits messages whose limiters have room by now; `went_back`: the clock did, and all times count anew. Sees to it that no message waits
-- without a time at which its limiter is looked at: `most` limiters a pass, behind those of the pass before. It admits `limit` messages, and
-- what one limiter more has room for. Returns when the next is due (ms), 0 where none is; and how many it admitted.
local function tend_limiters(queue, went_back, most, limit)
  local q = limiters().queue_of(queue.meta)
  local now, admitted = now_ms(), 0
  if went_back then
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', q.untils, '(' .. text(now), '+inf', 'LIMIT', 0, MOST_AHEAD)) do
      redis.call('ZADD', q.untils, text(now), id)
    end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', q.untils, '-inf', text(now), 'LIMIT', 0, MOST_DUE)) do
    admitted = admitted + limiters().admit(queue.meta, id)
    if admitted >= limit then break end
  end
  clear_held(q)
  local reached = redis.call('HGET', queue.meta, 'limiters_tended')
  local after = reached and '(' .. reached .. '\1' or '-'
  for _ = 1, most do
    local member = redis.call('ZRANGE', q.limited, after, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    reached = member and string.match(member, '^%Z*')
    if not reached then break end
    redis.call('ZADD', q.untils, 'NX', text(now), reached)
    after = '(' .. reached .. '\1'
  end
  if reached then
    redis.call('HSET', queue.meta, 'limiters_tended', reached)
  else
    redis.call('HDEL', queue.meta, 'limiters_tended')
  end
  local first = redis.call('ZRANGE', q.untils, 0, 0, 'WITHSCORES')
  if first[2] then return tonumber(first[2]), admitted end
  if redis.call('EXISTS', q.limited, q.held) == 0 then redis.call('HDEL', queue.meta, 'limiters') end
  return 0, admitted
end
