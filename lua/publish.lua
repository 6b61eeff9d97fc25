#!lua
-- Puts one message into one queue, once, however often its publisher retries.
-- KEYS  1 meta (hash)  2 queue (zset)  3 delayed (zset)  4 message (prefix of a hash)  5 wakeup (zset)  6 schedule_wakeup (zset)
--       7 expiry (zset)  8 producer (string)  [9 binding (hash, read): where its version is given]
--       [10 message of a staged body (hash): in the place before where there are no bindings]
-- ARGV  1 payload  2 rank (0-255, 0 first); behind a space the id of the record that it depends on ('' = none); behind another space
--       the version of the bindings that it was routed by  3 eta (ms since the epoch, '+ms' from now, 0 = now)
--       4 number of the message on its connection  5 retry (0/1)  6 dedup window (ms)
--       7 expiry of the message: '' = its queue's, else 'ms since the epoch', '+ms from when it becomes deliverable', or both
--       8 its description, for queues whose events are written ('' = not made)  [9 its deduplication, see include/deduplication]
-- Returns the tag; '' for a duplicate; 'NOQUEUE' where the queue has no record, 'REDECLARED' where it has another one than
-- the message depends on, 'REROUTE' where the bindings have another version, 'BOUNDED' where it has limits, which only
-- `publish_bounded` heeds, 'NEED_METADATA' where it wants a
-- description, 'DUPLICATE ', the tag of the message that stands for it and its task's id
-- already (nothing is written then).
-- No allow-oom: a full server refuses it before it writes anything. First tries of ordinary messages go by `publish_ordinary`.
-- Bound: a fixed number of commands.
-- @include store_ordinary
-- @include names_limiter

local record = redis.call('HMGET', KEYS[1],
  'id', 'ttl', 'next', 'message_ttl', 'limited', 'event_log', 'wakeup', 'quiet', 'ageing', 'published', 'newest',
  'groups', 'expires')
if not record[1] then return 'NOQUEUE' end
local rank, staged = tonumber(ARGV[2]), KEYS[9]
if not rank then
  local prepared_by, routed_by, outdated
  rank, prepared_by, routed_by = string.match(ARGV[2], '^(%d+) (%S*) ?(%S*)$')
  rank = tonumber(rank)
  -- The message was prepared by what the queue was declared with: not by another declaration.
  if prepared_by ~= '' and prepared_by ~= record[1] then outdated = 'REDECLARED' end
  if routed_by ~= '' then
    staged = KEYS[10]
    if (redis.call('HGET', KEYS[9], 'version') or '0') ~= routed_by then outdated = 'REROUTE' end
  end
  if outdated then
    if staged then redis.call('UNLINK', staged) end
    return outdated
  end
end
if record[5] then
  if staged then redis.call('UNLINK', staged) end
  return 'BOUNDED'
end
local special = staged or ARGV[9] or record[2] or record[4] or record[7] or record[8] or record[9] or record[12]
local simple = ARGV[3] == '0' and ARGV[5] == '0' and ARGV[7] == '' and not special and not names_limiter(envelope_in(ARGV[1]))

-- A retry may just have staged the body anew: it is left to expire.
if record[6] and ARGV[8] == '' then return 'NEED_METADATA' end

-- @include log_event
if simple then
  local log = record[6] and log_of(KEYS[1], record[6])
  local tag = store_ordinary(KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[8], record, log, ARGV[1], rank, ARGV[4], ARGV[6])
  if log and tag ~= '' then log_published(KEYS[1], tag, ARGV[8], ARGV[1], 0) end
  return tag
end
record.description = ARGV[8]

-- @include enqueue
-- @include idempotent_publish
-- @include deduplication

-- A message that is stored already, whose answer was lost, is no duplicate of itself.
local deduplicated = ARGV[9] and not was_stored(KEYS[8], ARGV[4])
local duplicate, replacement = deduplicated and duplicate_of(ARGV[9], KEYS[4]), nil
if deduplicated and string.sub(ARGV[9], 1, 8) == 'replace/' then
-- @include replacement
  local queue = { ready = KEYS[2], delayed = KEYS[3], message = KEYS[4], meta = KEYS[1], expiry = KEYS[7] }
  replacement, duplicate = replacement_of(ARGV[9], duplicate, queue, ARGV[3])
  record.ready_at = replacement and replacement.ready_at
end
if duplicate then
  if staged then redis.call('UNLINK', staged) end
  return 'DUPLICATE ' .. duplicate
end
if staged and redis.call('EXISTS', staged) == 0 then
  -- Another try has used it up; or it was evicted, and nothing must be remembered of a message that is not stored.
  if was_stored(KEYS[8], ARGV[4]) then return '' end
  return redis.error_reply('ERR the staged body is gone')
end
if not accept(KEYS[8], ARGV[4], ARGV[5] == '1', ARGV[6]) then
  -- An original that a retry has overtaken leaves the body to that retry, which has staged it again under the same name.
  if staged and ARGV[5] == '1' then redis.call('UNLINK', staged) end
  return ''
end
local tag = enqueue(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], record,
  ARGV[1], rank, replacement and replacement.eta or ARGV[3], staged, KEYS[7], ARGV[7])
remember_number(KEYS[8], ARGV[4], ARGV[5] == '1', ARGV[6])
-- What a transient queue leaves goes with it.
if record[13] and tonumber(record[13]) < tonumber(ARGV[6]) then redis.call('PEXPIRE', KEYS[8], record[13]) end
if replacement then
  replacement.finish(tag)
elseif ARGV[9] then
  remember_duplicate(ARGV[9], tag, KEYS[4], ARGV[3])
end
return tag
