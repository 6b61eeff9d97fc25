#!lua flags=no-writes
-- Lists a queue's live consumers with their records, and who holds its claimed messages, a page of each at a time.
-- KEYS  1 consumers (zset)  2 consumer (prefix of a hash)  3 heartbeats (zset)  4 meta (hash)  5 messages_index (zset)
--       6 message (prefix of a hash)
-- ARGV  1 first entry of the page  2 entries a page
-- Returns { whether more may follow (0/1), active consumer or '', holders, consumer, since, record, ... }: since is in ms, a record is a
-- list of names and values.
-- Bound: one page of claimed messages, and two looks at each consumer of one page.
-- @include living
local first, last = tonumber(ARGV[1]), ARGV[1] + ARGV[2] - 1
local tags = redis.call('ZRANGE', KEYS[5], first, last)
local holders = {}
for i, tag in ipairs(tags) do holders[i] = redis.call('HGET', KEYS[6] .. tag, 'owner') or '' end
local now = now_ms()
local listed = redis.call('ZRANGE', KEYS[1], first, last, 'WITHSCORES')
local more = math.max(#tags, #listed / 2) == tonumber(ARGV[2])
local reply = { more and 1 or 0, redis.call('HGET', KEYS[4], 'active') or '', holders }
for i = 1, #listed, 2 do
  local record, fields = redis.call('HGETALL', KEYS[2] .. listed[i]), {}
  for at = 1, #record, 2 do fields[record[at]] = record[at + 1] end
  if dead_at(KEYS[3], fields.process, fields.timeout, tonumber(listed[i + 1]), now) > now then
    reply[#reply + 1] = listed[i]
    reply[#reply + 1] = listed[i + 1]
    reply[#reply + 1] = record
  end
end
return reply
