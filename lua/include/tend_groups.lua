-- @include groups
-- What holds for the groups of a queue, whatever failed or was evicted: each place belongs to a message that is there, each held message
-- has its member, and nothing is held while its group has room.

-- Admitted members of a group that one call looks at.
local MOST_PLACES = 10

-- Whether a member stands for a message that is where the member says.
local function stands(g, kind, group, member, tag)
  if kind == 'h' then
    local place = redis.call('ZSCORE', g.held, tag)
    return place and groups().held_member(group, tonumber(place), tag) == member
  end
  if redis.call('ZSCORE', g.ready, tag) or redis.call('ZSCORE', g.index, tag) or redis.call('ZSCORE', g.delayed, tag) then return true end
  -- Where the order of groups is strict.
  return limiters().holds(g.meta, tag)
end

-- Calls `found(group, member, tag)` for members of up to `most` groups behind the group `from` (false = the first) that stand for nothing, and
-- `found(group)` for each group that has room for what it holds. Returns the last group that it came to; false at the end.
local function look_at_groups(g, from, most, found)
  local after = from and '(' .. from .. '\1' or '-'
  for _ = 1, most do
    local member = redis.call('ZRANGE', g.groups, after, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then return false end
    local group = string.match(member, '^%Z*')
    local places = redis.call('ZRANGE', g.groups, '[' .. group .. '\0r', '(' .. group .. '\0v', 'BYLEX', 'LIMIT', 0, MOST_PLACES)
    for _, one in ipairs(places) do
      local tag = string.sub(one, #group + 3)
      if not stands(g, 'r', group, one, tag) then found(group, one, tag) end
    end
    local first, tag = groups().next_held(g, group)
    if first and not stands(g, 'h', group, first, tag) then found(group, first, tag) end
    if first and groups().has_room(g, group) then found(group) end
    from, after = group, '(' .. group .. '\1'
  end
  return from
end

local function mend_groups(g)
  return function(group, member)
    if member then redis.call('ZREM', g.groups, member) end
    groups().admit(g, group)
  end
end

-- Removes tags from `held` whose messages do not wait there: a few at random, which are all in time. What else there is of them goes when
-- their turn comes.
local LOOKED_AT_IN_HELD = 20
local function clear_held(g)
  for _, tag in ipairs(redis.call('ZRANDMEMBER', g.held, LOOKED_AT_IN_HELD)) do
    if not groups().is_held(g, tag) then redis.call('ZREM', g.held, tag) end
  end
end
