#!lua flags=allow-oom
-- Holds the raise of the number of shards for one command: no two work at once, and the mark changes only as its holder has read it.
-- KEYS  1 shards_raise (hash)  2 database_id (string)
-- ARGV  1 the command's token  2 the number that it raises to  3 for how long it holds the raise (ms)  4 the mark as it was read
--       5 the mark to write ('' = none)  6 the number of a raise that was given up, and is undone by now ('' = none)
-- Returns { how, number that a raise was begun to before ('' = none) }; how: 'held', 'busy' where another command holds it, 'other' where a
-- raise to another number was begun and not finished: it is held, too, and 'moved' where the mark is another one.
-- Bound: a fixed number of commands.
-- @include now
-- @include text
local now, record = now_ms(), redis.call('HMGET', KEYS[1], 'shards', 'holder', 'until')
local number, holder, held_until = record[1], record[2], tonumber(record[3])
-- A clock that went back must not hold it for longer than a command may.
if holder and holder ~= ARGV[1] and held_until and held_until > now and held_until <= now + ARGV[3] then return { 'busy', number or '' } end
if redis.call('GET', KEYS[2]) ~= ARGV[4] then return { 'moved', number or '' } end
local is_other = number and number ~= ARGV[2] and number ~= ARGV[6]
redis.call('HSET', KEYS[1], 'shards', is_other and number or ARGV[2], 'holder', ARGV[1], 'until', text(now + ARGV[3]))
if is_other then return { 'other', number } end
if ARGV[5] ~= '' then redis.call('SET', KEYS[2], ARGV[5]) end
return { 'held', number or '' }
