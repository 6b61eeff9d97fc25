#!lua flags=no-writes
-- Lists a queue's live consumers with their records, and who holds its claimed messages, a page of these at a time.
-- KEYS  1 consumers (zset)  2 consumer (prefix of a hash)  3 meta (hash)  4 messages_index (zset)  5 message (prefix of a hash)
-- ARGV  1 first claimed message of the page  2 claimed messages a page
-- Returns { claimed messages looked at, active consumer or '', holders, [ consumer, record, ... ] }: a record is a list of names and
-- values; consumers come with the first page only.
-- Bound: one page of claimed messages; with the first, two looks at each of the queue's consumers.
-- @include now
-- @include text
local first, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local tags = redis.call('ZRANGE', KEYS[4], first, first + count - 1)
local holders = {}
for i, tag in ipairs(tags) do holders[i] = redis.call('HGET', KEYS[5] .. tag, 'owner') or '' end
local reply = { #tags, redis.call('HGET', KEYS[3], 'active') or '', holders }
if first == 0 then
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now_ms()), '+inf')) do
    reply[#reply + 1] = id
    reply[#reply + 1] = redis.call('HGETALL', KEYS[2] .. id)
  end
end
return reply
