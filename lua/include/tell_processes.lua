-- Has the process of each of these consumers look at their queue, whose record has changed or gone: each takes one member.
-- `life` is how long these stay (ms), false for a queue that lasts.
local function tell_processes(schedule_wakeup, consumers, life)
  for _, id in ipairs(consumers) do redis.call('ZADD', schedule_wakeup, 0, id) end
  if life and #consumers > 0 then redis.call('PEXPIRE', schedule_wakeup, life) end
end
