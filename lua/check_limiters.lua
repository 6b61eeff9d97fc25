#!lua flags=allow-oom
-- Holds the messages of one queue that wait for limiters against the rules: each stands there, and each limiter has a time at which it is
-- looked at again. Repairs what it finds, if asked. (`check_messages` looks at the messages themselves.)
-- KEYS  1 meta (hash)
-- ARGV  1 repair (0/1)  2 limiter behind which it begins ('' first)  3 limiters at most
-- Returns { ARGV 2 of the next call ('' = done), then per violation: tag ('' = the limiter's), rule, what was found }.
-- Bound: the limiters of ARGV 3, and for each the messages that it has room for, 100 at most.
-- @include groups
local repair, q, reply = ARGV[1] == '1', limiters().queue_of(KEYS[1]), { '' }
local function report(tag, rule, id)
  for _, part in ipairs({ tag, rule, 'limiter ' .. string.sub(id, 1, 100) }) do reply[#reply + 1] = part end
end
local after = ARGV[2] ~= '' and '(' .. ARGV[2] .. '\1' or '-'
for _ = 1, tonumber(ARGV[3]) do
  local member = redis.call('ZRANGE', q.limited, after, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
  local id = member and string.match(member, '^%Z*')
  reply[1] = id or ''
  if not id then break end
  local _, place, tag = limiters().next_waiting(q, id)
  local stale, timeless = not limiters().waiting(q, tag, place), not redis.call('ZSCORE', q.untils, id)
  if stale then report(tag, 'limiter-member-without-message', id) end
  if timeless then report('', 'limiter-without-time', id) end
  if repair and (stale or timeless) then limiters().admit(KEYS[1], id) end
  after = '(' .. id .. '\1'
end
return reply
