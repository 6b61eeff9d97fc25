#!lua flags=allow-oom
-- Puts back what the sessions of a lost process have of one queue, as after the visibility timeout. A page by deadline: the process sends
-- no heartbeats that would move its messages to another page.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 wakeup (zset)  6 meta (hash)
--       7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset, read)
-- ARGV  1 place behind which the page begins, as include/place.lua has it ('' first)  2 entries a page  3 delivery limit of queues
--       without their own (-1 = none)  4 how many dead letters a queue keeps, then the sessions
-- Returns { how many messages were put back or died, how many of them died, ARGV 1 of the next page ('' = done), death, ... }: the deaths
-- as return_to_queue.lua has them.
-- Bound: the claimed messages of one page, and 500 dead letters that go for these.
-- @include now
-- @include place
-- @include state_keys
-- @include return_to_queue
-- @include damaged_message
-- @include notify
local keys = state_keys(0)
local now = now_ms()
local lost = {}
for i = 5, #ARGV do lost[ARGV[i]] = true end
local page, reached = page_behind(keys.index, ARGV[1], tonumber(ARGV[2]))
local rules = redis.call('HMGET', keys.meta, unpack(FAILURE_RULES))
local back, died = 0, 0
for i = 1, #page, 2 do
  local tag = page[i]
  local fields = fields_of(keys.message .. tag, 'owner', 'score', 'expires', 'died')
  -- One that is dead or ready already was left by a script that failed: the sweep finishes that.
  if lost[fields[1]] and fields[2] and not fields[4] and not redis.call('ZSCORE', keys.ready, tag) then
    local place = attempted(keys, tag, now, return_lost, keys, rules, ARGV[3], tag, fields[2], fields[3], now, 'connection_lost')
    if place == 'dead' then died = died + 1 end
    -- One that fails stays until its lease ends: the sweep tries it then.
    if place ~= 'failed' then
      redis.call('ZREM', keys.index, tag)
      back = back + 1
    end
  end
end
if died > 0 then pcall(trim_dead, keys, tonumber(ARGV[4]), 0) end
if back > died then notify(keys.wakeup, keys.meta) end
local reply = { back, died, reached }
for _, part in ipairs(deaths) do reply[#reply + 1] = part end
return reply
