#!lua flags=allow-oom
-- Forgets expired tasks that a worker has revoked.
-- KEYS  1.. the outbox (include/expired_tasks.lua)
-- ARGV  tags
-- Returns how many were named.
-- @include text
-- @include expired_tasks
local outbox = outbox_of(0)
for _, tag in ipairs(ARGV) do forget_expired(outbox, tag) end
return #ARGV
