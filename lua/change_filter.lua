#!lua flags=allow-oom
-- Adds binding keys to the filter of a subscriber, or removes them: from now on broadcasts with them are noted for it, or not.
-- KEYS  1 fanout (hash)
-- ARGV  1 id of the subscriber, of the durable one where it has one  2 add (1) or remove (0)  3 binding keys (JSON)
-- Returns 1 where it has a filter with other keys; else 0, and nothing is changed: its next heartbeat makes it anew.
-- @include filters
if not has_filter(KEYS[1], ARGV[1]) then return 0 end
change_filter(KEYS[1], ARGV[1], cjson.decode(ARGV[3]), ARGV[2] == '1')
return 1
