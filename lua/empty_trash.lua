#!lua flags=allow-oom
-- Frees messages that a purge or a delete put into the trash.
-- KEYS  1 trash (zset)  2 message (prefix of a hash)  3 meta (hash)
-- ARGV  1 how many at most  2 record of the events of a queue that was deleted ('' = it stands)
-- Returns how many were freed.
-- Bound: the messages of ARGV 1.
-- @include now
-- @include trash_messages
return empty_trash(KEYS[1], KEYS[2], KEYS[3], ARGV[1], now_ms(), ARGV[2])
