#!lua flags=allow-oom
-- Holds the groups of one queue against the rules: each place belongs to a message that is there, and nothing is held while its group has
-- room. Repairs what it finds, if asked. (`check_messages` looks at the messages themselves.)
-- KEYS  1 meta (hash)
-- KEYS of its own  groups (zset)  held (zset)  queue (zset)  delayed (zset)  messages_index (zset, read)  message (prefix of a hash)
--       wakeup (zset)
-- ARGV  1 repair (0/1)  2 group behind which it begins ('' first)  3 groups at most
-- Returns { ARGV 2 of the next call ('' = done), then per violation: tag ('' = the group's), rule, what was found }.
-- Bound: the groups of ARGV 3, a few of the members of each.
-- @include tend_groups
local repair = ARGV[1] == '1'
local g = groups().read(KEYS[1])
if not g then return { '' } end
local reply, mend = { '' }, mend_groups(g)
local function report(group, member, tag)
  reply[#reply + 1] = tag or ''
  reply[#reply + 1] = member and 'group-member-without-message' or 'group-with-room'
  reply[#reply + 1] = 'group ' .. string.sub(group, 1, 100)
  if repair then mend(group, member) end
end
reply[1] = look_at_groups(g, ARGV[2] ~= '' and ARGV[2], tonumber(ARGV[3]), report) or ''
return reply
