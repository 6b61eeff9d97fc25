#!lua flags=allow-oom
-- Takes messages of one queue or more for a consumer: out of the queue and into the index, in one step. Before, it removes
-- messages that the consumer has acked: at prefetch 1 each ack comes with the next claim.
-- KEYS  per queue: queue (zset), messages_index (zset), message (prefix of a hash), wakeup (zset), meta (hash), expiry (zset),
--       delayed (zset), consumers (zset, read), with_credit (zset, read)
-- ARGV  1 credit: how many messages at most  2 visibility timeout (ms)  3 holder  4 bytes of payload at most
--       5 share (1 = split the credit among the queues, 0 = the first queue first)  6 the worker's name, packed for events
--       7 how many messages are acked, then for each: the number of its queue (from 1), its tag (of a message without limits
--       and events), then per queue: how many of its messages the consumer has in work (none = it may take as many as it likes)
-- Returns { more, header, payload, header, payload, ... }: `more` lists, space-separated, the numbers of the queues that still
-- have ready messages, and with a minus sign those that only `claim_restricted` may take from; where acked messages of queues
-- stand elsewhere than in the index, follows '|' and the numbers of these queues: `ack` has to remove them; for each queue that
-- cannot be claimed from follows '!', its number, and why: a key of another type, or a field that is no number, is its own matter.
-- A header is 'queue-number tag claim failures seen', and behind that 'retried' of a task whose retry was published before its
-- worker died, and 'expired' of a Celery task that the worker has to revoke.
-- Bound: 500 ready entries over all queues, taken or passed (they expired, or their hash is gone); the caller goes on with `more`.
-- @include claim_messages

local WIDTH = 9
local queues = #KEYS / WIDTH
local credit = math.min(tonumber(ARGV[1]), MOST_LOOKED_AT)
local room = MOST_LOOKED_AT
visibility, holder, bytes, worker = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[6]
local share = ARGV[5] == '1'
local first_held = 8 + 2 * ARGV[7]
local more = {}
local drained = {}
local open = {}
-- Calls of commands are what a claim costs: one tells whether the queue has rules for its consumers (`with_credit` exists then,
-- and counts twice) and whether its wake-up stands, so that nothing has to be done about most wake-ups.
local notified = {}
for q = 1, queues do
  local with_credit = KEYS[q * WIDTH]
  local found = redis.call('EXISTS', with_credit, with_credit, KEYS[q * WIDTH - 5])
  if found > 1 then
    more[#more + 1] = -q
  else
    notified[q] = found == 1
    open[#open + 1] = q
  end
end
local plain = open

local to_ack = ''
if ARGV[7] ~= '0' then
  local acked = {}
  for at = 8, first_held - 2, 2 do
    local tags = acked[ARGV[at]] or {}
    acked[ARGV[at]] = tags
    tags[#tags + 1] = ARGV[at + 1]
  end
  for q, tags in pairs(acked) do
    local base = (q - 1) * WIDTH
    local hashes = {}
    for i, tag in ipairs(tags) do hashes[i] = KEYS[base + 3] .. tag end
    redis.call('UNLINK', unpack(hashes))
    local removed = redis.pcall('ZREM', KEYS[base + 2], unpack(tags))
    if type(removed) ~= 'number' or removed < #tags then to_ack = to_ack .. (to_ack == '' and '|' or ' ') .. q end
  end
end

local failed = ''
while credit > 0 and bytes > 0 and room > 0 and #open > 0 do
  local still = {}
  for i, q in ipairs(open) do
    if credit <= 0 or bytes <= 0 or room <= 0 then break end
    local count = math.min(credit, room)
    -- So that one full of expired messages leaves the others their look.
    if share then count = math.ceil(count / (#open - i + 1)) end
    local base = (q - 1) * WIDTH
    local part, held = count, ARGV[first_held - 1 + q]
    if held and count > 1 then
      -- A key of another type has no members: the claim itself tells of it, where it needs it.
      local function size(key)
        local members = redis.pcall('ZCARD', key)
        return type(members) == 'number' and members or 0
      end
      -- The consumer's fair part of a burst: what all have, ready and in work, by the number of consumers, less what it has; and of
      -- what is ready at least its part, so that it does not have to come for the messages one by one. A backlog is enough for all.
      local consumers = size(KEYS[base + 8])
      local ready = consumers > 1 and size(KEYS[base + 1])
      if ready and ready < count * consumers then
        local in_work = size(KEYS[base + 2])
        part = math.min(count, math.max(math.ceil((ready + in_work) / consumers) - held, math.ceil(ready / consumers), 1))
      end
    end
    local before, bytes_before = #reply, bytes
    local fine, taken, left, passed =
      pcall(claim_messages, q, part, KEYS[base + 1], KEYS[base + 2], KEYS[base + 3], KEYS[base + 5], KEYS[base + 6], KEYS[base + 7])
    if not fine then
      failed = failed .. '!' .. q .. ' ' .. string.gsub(type(taken) == 'table' and taken.err or tostring(taken), '!', ' ')
      -- What it has not taken out of the queue is still there.
      for i = #reply, taken_out + 1, -1 do reply[i] = nil end
      taken = (#reply - before) / 2
      left, passed = taken == 0, taken
      if left then bytes = bytes_before end
    end
    drained[q] = left
    credit, room = credit - taken, room - passed
    if fine and not left and part == count then still[#still + 1] = q end
  end
  open = still
end
for _, q in ipairs(plain) do
  local base = (q - 1) * WIDTH
  if drained[q] == false or drained[q] == nil and redis.call('EXISTS', KEYS[base + 1]) == 1 then
    if not notified[q] then
      redis.call('ZADD', KEYS[base + 4], 0, 'work')
      local ttl = redis.pcall('HGET', KEYS[base + 5], 'ttl')
      if type(ttl) == 'string' then redis.pcall('PEXPIRE', KEYS[base + 4], ttl, 'NX') end
    end
    more[#more + 1] = q
  elseif notified[q] then
    redis.call('DEL', KEYS[base + 4])
  end
end
reply[1] = table.concat(more, ' ') .. to_ack .. failed
return reply
