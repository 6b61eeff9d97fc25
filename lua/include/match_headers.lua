-- @include message
-- @include place

-- Filtered queues (`x-filtered`): which ready messages a consumer's `x-filter` takes. A look is bounded: it begins with the first
-- ready messages, of which a new one of high priority is one, and goes on where the consumer's last look has ended.
local FIRST_LOOKED_AT, LOOKED_AT = 25, 75
-- Bytes of payload that these two parts of a look read. The part that goes on reads one message of any size all the same.
local FIRST_BYTES, BYTES = 16384, 49152

-- Whether the headers of a message match. `wanted` is what broker/arguments/header_filter.py has packed: how ('all', 'any'), then of
-- each header its name, how its name stands in JSON ('' = with escapes), and its value (null = any).
local function matches(wanted, envelope)
  local all = wanted[1] == 'all'
  for i = 2, #wanted do
    -- Most messages that do not match are told from their text.
    local there = wanted[i][2] == '' or string.find(envelope, wanted[i][2], 1, true)
    if all and not there then return false end
  end
  local fine, data = pcall(cjson.decode, envelope)
  local headers = fine and type(data) == 'table' and type(data.headers) == 'table' and data.headers or {}
  for i = 2, #wanted do
    local value = headers[wanted[i][1]]
    local same = value ~= nil and (wanted[i][3] == cjson.null or value == wanted[i][3])
    if same ~= all then return same end
  end
  return all
end

-- Adds to `chosen` what matches of the pairs tag, score in `found`, up to `most` values; what has no headers is taken as well, so that
-- the claim clears it away. `first`: of the first part, before one that goes on. Returns the place of the last pair that was looked at.
local function choose(keys, wanted, found, most, chosen, known, first)
  local at, room = 0, first and FIRST_BYTES or BYTES
  while at < #found and #chosen < most do
    local tag = found[at + 1]
    if not known[tag] then
      local size = redis.pcall('HSTRLEN', keys.message .. tag, 'payload')
      -- A key of another type has no payload, as `fields_of` finds.
      if type(size) ~= 'number' then size = 0 end
      if size > room and (first or room < BYTES) then break end
      known[tag], room = true, room - size
      local payload = fields_of(keys.message .. tag, 'payload')[1]
      if not payload or matches(wanted, string.match(payload, '^[^\n]*')) then
        chosen[#chosen + 1] = tag
        chosen[#chosen + 1] = found[at + 2]
      end
    end
    at = at + 2
  end
  return at
end

-- Returns up to `count` pairs of tag and score that match, and where the next look goes on: '' where this one has met the end.
local function look(keys, wanted, count, cursor)
  local chosen, known = {}, {}
  local goes_on = cursor ~= ''
  local found = redis.call('ZRANGE', keys.ready, 0, (goes_on and FIRST_LOOKED_AT or LOOKED_AT) - 1, 'WITHSCORES')
  local ends = #found < 2 * LOOKED_AT
  local at = choose(keys, wanted, found, 2 * count, chosen, known, goes_on)
  if goes_on then
    if #chosen >= 2 * count then return chosen, cursor end
    local reached
    found, reached = page_behind(keys.ready, cursor, LOOKED_AT)
    ends = reached == ''
    at = choose(keys, wanted, found, 2 * count, chosen, known, false)
  end
  if ends and at == #found then return chosen, '' end
  return chosen, at == 0 and cursor or found[at] .. '/' .. found[at - 1]
end
