#!lua flags=allow-oom
-- Writes how a task failed whose message was acked before the work began; the log has nothing else to go by.
-- KEYS  1 meta (hash)
-- ARGV  1 tag  2 reason  3 error, both packed for events
-- Returns 1.
-- Bound: a fixed number of commands.
-- @include log_event
log_event(KEYS[1], ARGV[1], 'failed', { reason = ARGV[2], error = ARGV[3] })
return 1
