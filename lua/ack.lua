#!lua flags=allow-oom
-- Removes settled messages for good. No fence: the process that finished the work may remove it, wherever it stands by now.
-- KEYS  1 messages_index (zset)  2 queue (zset)  3 delayed (zset)  4 dead (zset)  5 dlx_outbox (zset)
--       6 message (prefix of a hash)  7 meta (hash)
-- ARGV  tags; one whose events are written may be followed by TAB, the reason of its event, TAB, the error's class name
-- Returns how many were still there.
-- Bound: the tags that are given.
-- @include tag_flags

local PLACES = 5

-- Removes messages that are there, wherever they stand. Returns how many.
local function remove(tags)
  local hashes = {}
  for i, tag in ipairs(tags) do hashes[i] = KEYS[6] .. tag end
  local removed = redis.call('UNLINK', unpack(hashes))
  local found, place = 0, 0
  repeat
    place = place + 1
    found = found + redis.call('ZREM', KEYS[place], unpack(tags))
  until found >= #tags or place == PLACES
  return removed
end

local plain, others = {}, {}
for _, tag in ipairs(ARGV) do
  local kind = is_plain(tag) and plain or others
  kind[#kind + 1] = tag
end
local removed = #plain > 0 and remove(plain) or 0
if #others == 0 then return removed end

-- Only here, because each call makes the functions anew that it comes by.
-- @include release_capacity
-- @include log_event
-- @include groups
local freed, bytes = 0, 0
for _, tag in ipairs(others) do
  local reason, err
  if is_logged(tag) then tag, reason, err = string.match(tag, '^([^\t]+)\t?([^\t]*)\t?(.*)$') end
  local size = is_bounded(tag) and redis.pcall('HEXISTS', KEYS[6] .. tag, 'died') == 0 and size_of(KEYS[6] .. tag) or 0
  local group = is_grouped(tag) and groups().group_of(KEYS[6] .. tag)
  local was_there = remove({ tag })
  if was_there == 1 then
    removed = removed + 1
    if size > 0 then
      freed = freed + 1
      bytes = bytes + size
    end
    if group then groups().leave(KEYS[7], tag, group) end
    if reason then log_event(KEYS[7], tag, 'acked', { reason = reason, error = err }) end
  end
end
if freed > 0 then release_capacity(KEYS[7], freed, bytes, 'settled', now_ms()) end
return removed
