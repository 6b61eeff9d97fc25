#!lua flags=allow-oom
-- Takes of a limiter what a running task asks for, where there is room for it; or gives back the place that it has.
-- KEYS  1 limiter_rules (hash, read)
-- ARGV  1 the limiter, as a message's header names it  2 who takes: tag, NUL, the queue's part of its keys, NUL, number of the claim; of a
--       limiter that counts places it has to be a message that a consumer has  3 give back (0/1)  4 for how many ms it waits at most ('' = as long as
--       it takes)
-- Returns '0' where it is taken, or given back; else after how many ms there may be room.
-- Bound: a fixed number of commands; after a step of the clock back the messages of a window, 10,000 at most. Where a place is given back,
--       100 messages in each of 10 queues.
-- @include groups
local limiter = limiters().read(ARGV[1])
if not limiter then return redis.error_reply('ERR no limiter: ' .. string.sub(ARGV[1], 1, 100)) end
local q = { prefix = string.sub(KEYS[1], 1, -#'limiter_rules' - 1), rest = '' }
if ARGV[3] == '1' then
  if redis.call('ZREM', limiters().key_of(q, 'limiter_places', limiter), ARGV[2]) > 0 then limiters().admit_everywhere(q, limiter.id) end
  return '0'
end
local who = 'tasks ' .. text(limiter.cost)
local wait, _, is_new, tokens, booking = limiters().wait_for(q, limiter, 0, who, tonumber(ARGV[4]) or math.huge)
if wait > 0 then return text(math.ceil(wait)) end
limiters().take(q, limiter, ARGV[2], who, is_new, tokens, booking)
return '0'
