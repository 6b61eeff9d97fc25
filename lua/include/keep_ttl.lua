-- Gives keys of a transient queue that a script may just have made the time to live of its keys (`ttl`: ms, or false in a lasting queue).
-- One that has an expiry keeps it: only use of the queue moves that on (`extend_queue_ttl.lua`). What somebody else wrote into the record in
-- place of the number holds up no message.
local function keep_ttl(ttl, ...)
  if not ttl then return end
  for _, key in ipairs({ ... }) do redis.pcall('PEXPIRE', key, ttl, 'NX') end
end
