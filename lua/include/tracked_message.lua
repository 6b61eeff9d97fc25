-- @include now
-- @include track

-- KEYS of its own  tracks (zset, read)  track (hash)  track_events (stream)
-- What becomes of a message that ends without an answer of a consumer, for a publisher that waits for one. Where no tracked delivery
-- is open, this costs a script one command.

local _prefix

-- The id of the delivery that a message belongs to, for `tell_tracked` once the message has ended; false without one. `meta` is the
-- key of its queue's record, `hash` its own.
local function tracked_by(meta, hash)
  if _prefix == nil then
    _prefix = string.match(meta, '^(.-)meta:{')
    _prefix = redis.call('EXISTS', _prefix .. 'tracks') == 1 and _prefix
  end
  if not _prefix then return false end
  local payload = redis.pcall('HGET', hash, 'payload')
  return type(payload) == 'string' and string.match(payload, '^[^\n]*"x%-delivery%-id":"(%x+)"') or false
end

-- Tells it the outcome of the recipient that had the message: by its tag, or the only one. Anyone may write the header: what is no
-- delivery is passed over.
local function tell_tracked(id, tag, outcome)
  if not id then return end
  local track, events = _prefix .. 'track:{' .. id .. '}', _prefix .. 'track_events:{' .. id .. '}'
  local fields = redis.pcall('HGETALL', track)
  local by_tag, recipients, outcomes = nil, {}, {}
  for i = 1, #fields, 2 do
    local kind, name = string.match(fields[i], '^(%l+):(.*)$')
    if kind == 'to' then
      recipients[#recipients + 1] = name
      outcomes[name] = fields[i + 1]
    elseif kind == 'tag' and fields[i + 1] == tag then
      by_tag = name
    end
  end
  local recipient = by_tag or #recipients == 1 and recipients[1]
  if recipient and not FINAL[outcomes[recipient]] then report_outcome(track, events, recipient, outcome, now_ms) end
end
