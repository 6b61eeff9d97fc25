-- Has the process of each of these consumers look at their queue, whose record has changed or gone: each takes one member.
local function tell_processes(schedule_wakeup, consumers)
  for _, id in ipairs(consumers) do redis.call('ZADD', schedule_wakeup, 0, id) end
  if #consumers > 0 then redis.call('PEXPIRE', schedule_wakeup, 10000) end
end
