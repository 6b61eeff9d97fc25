#!lua flags=no-writes
-- Looks for a text among the headers and properties of the messages in one place of a queue: a page, those with the lowest scores first.
-- KEYS  1 queue (zset), delayed (zset), messages_index (zset), dead (zset) or dlx_outbox (zset)  2 message (prefix of a hash)
-- ARGV  1 the text ('' = all match)  2 place behind which the page begins, as include/place.lua has it ('' first)  3 entries at most
--       4 bytes of payload after which no further entry is looked at
-- Returns { place where the page ends ('' = nothing follows), how many were looked at, tag, envelope, ... of those that have the text }.
-- Bound: one page.
-- @include message
-- @include place
local text, most = ARGV[1], tonumber(ARGV[4])
local page, reached = page_behind(KEYS[1], ARGV[2], tonumber(ARGV[3]))
local found, bytes = { reached, 0 }, 0
for i = 1, #page, 2 do
  if bytes >= most then
    found[1] = page[i - 1] .. '/' .. page[i - 2]
    break
  end
  local payload = fields_of(KEYS[2] .. page[i], 'payload')[1]
  found[2] = found[2] + 1
  if payload then
    bytes = bytes + #payload
    local at = string.find(payload, text, 1, true)
    if at then
      local envelope = string.match(payload, '^[^\n]*')
      if at <= #envelope then
        found[#found + 1] = page[i]
        found[#found + 1] = envelope
      end
    end
  end
end
return found
