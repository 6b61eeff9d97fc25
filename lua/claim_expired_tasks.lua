#!lua flags=allow-oom
-- Takes tasks that expired for a worker, which revokes them; one that does not say that it has leaves them to others. A time that is
-- further ahead than any worker leaves them alone for was noted before the clock went back: such a task is free as well.
-- KEYS  1.. the outbox (include/expired_tasks.lua)
-- ARGV  1 how many at most  2 for how long others leave them alone (ms)  3 bytes after which no further one is taken
--       4.. names of the tasks that the worker has
-- Returns { tag, time of death (ms), payload, body, ... }, '' for a body that stands in its payload.
-- @include now
-- @include text
-- @include expired_tasks
local now, bytes = now_ms(), tonumber(ARGV[3])
local outbox = outbox_of(0)
local until_now, beyond = text(now), '(' .. text(now + ARGV[2])
local reply = {}
for i = 4, #ARGV do
  local named = outbox.named .. ARGV[i]
  local left = ARGV[1] - #reply / 4
  if left <= 0 then break end
  local tags = redis.call('ZRANGEBYSCORE', named, '-inf', until_now, 'LIMIT', 0, left)
  if #tags == 0 then tags = redis.call('ZRANGEBYSCORE', named, beyond, '+inf', 'LIMIT', 0, left) end
  for _, tag in ipairs(tags) do
    if bytes <= 0 then return reply end
    local fields = redis.call('HMGET', outbox.task .. tag, 'died', 'payload', 'body')
    if fields[2] then
      redis.call('ZADD', named, text(now + ARGV[2]), tag)
      bytes = bytes - #fields[2] - #(fields[3] or '')
      for _, value in ipairs({ tag, fields[1], fields[2], fields[3] or '' }) do reply[#reply + 1] = value end
    else
      -- The server has evicted the copy.
      forget_named(outbox, ARGV[i], tag)
      redis.call('ZREM', outbox.tasks, tag)
      forget_bytes(outbox, tag)
    end
  end
end
return reply
