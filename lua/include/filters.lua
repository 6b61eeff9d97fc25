-- @include fanout
-- @include text

-- KEYS of its own  fanout (hash), fanout (stream)
-- Subscribers whose queue has `x-server-filter`: docs/design/0021-server-filter.md. The hash `fanout:{S}:filters` has the fields
-- 'keys:ID' (binding keys of a subscriber), 'key:KEY' (subscribers with a binding key), 'patterns' (binding keys with wildcards),
-- 'readers:ID' (readers of a durable subscriber), these four as JSON; 'count:ID' (how many broadcasts have matched), and 'first:ID' (id
-- of the first one that a subscriber or reader has not processed). The stream `fanout:{S}:matches:ID` has the ids of those that matched.

local function read_list(filters, field)
  local stored = redis.call('HGET', filters, field)
  return stored and cjson.decode(stored) or {}
end

-- Adds a member to a list, or removes it; returns how many there are.
local function change_list(filters, field, member, is_member)
  local list, was_member = {}, false
  for _, other in ipairs(read_list(filters, field)) do
    if other == member then was_member = true else list[#list + 1] = other end
  end
  if is_member then list[#list + 1] = member end
  if was_member == is_member then return #list end
  if #list == 0 then redis.call('HDEL', filters, field) else redis.call('HSET', filters, field, cjson.encode(list)) end
  return #list
end

local function has_filter(fanout, id)
  return redis.call('HEXISTS', fanout .. ':filters', 'keys:' .. id) == 1
end

local function has_filters(fanout)
  return redis.call('HEXISTS', fanout, 'filtered') == 1
end

-- How many broadcasts a subscriber could have got so far: those that matched its filter, or all of the exchange.
local function broadcasts_for(fanout, id)
  local durable = 'durable' .. string.match(id, '%..*$')
  local counts = redis.call('HMGET', fanout .. ':filters', 'count:' .. id, 'count:' .. durable)
  return tonumber(counts[1] or counts[2] or redis.call('HGET', fanout, 'count') or 0)
end

-- Adds binding keys to a subscriber's filter, or removes them.
local function change_filter(fanout, id, binding_keys, is_member)
  local filters = fanout .. ':filters'
  if is_member then redis.call('HSETNX', filters, 'count:' .. id, 0) end
  for _, key in ipairs(binding_keys) do
    local left = change_list(filters, 'key:' .. key, id, is_member)
    if string.find(key, '[*#]') then change_list(filters, 'patterns', key, left > 0) end
    change_list(filters, 'keys:' .. id, key, is_member)
  end
  -- `limited` is what a publish looks for: there is more to do.
  if redis.call('EXISTS', filters) == 1 then
    redis.call('HSET', fanout, 'filtered', 1)
    redis.call('HSETNX', fanout, 'limited', '')
  else
    redis.call('HDEL', fanout, 'filtered')
    if redis.call('HGET', fanout, 'limited') == '' then redis.call('HDEL', fanout, 'limited') end
  end
end

-- Removes a subscriber's filter, or a reader of a durable one.
local function remove_filter(fanout, id)
  if not has_filters(fanout) then return end
  local filters, durable = fanout .. ':filters', 'durable' .. string.match(id, '%..*$')
  if id ~= durable and has_filter(fanout, durable) then change_list(filters, 'readers:' .. durable, id, false) end
  redis.call('HDEL', filters, 'count:' .. id, 'first:' .. id, 'readers:' .. id)
  redis.call('UNLINK', fanout .. ':matches:' .. id)
  -- Its keys last: by them it is found.
  change_filter(fanout, id, read_list(filters, 'keys:' .. id), false)
end

-- Notes where a subscriber with the filter of `owner` is that has processed everything up to `cursor`. One without an unread
-- broadcast holds nothing up: its number is infinite until the next one matches.
local function set_place(fanout, cursors, owner, id, cursor)
  local filters = fanout .. ':filters'
  local match = redis.call('XRANGE', fanout .. ':matches:' .. owner, '(' .. cursor, '+', 'COUNT', 1)[1]
  if match then
    redis.call('HSET', filters, 'first:' .. id, match[1])
    redis.call('ZADD', cursors, text(string.match(match[2][2], '%d+$') - 1), id)
  else
    redis.call('HDEL', filters, 'first:' .. id)
    redis.call('ZADD', cursors, '+inf', id)
  end
end

-- Drops what the subscriber with the filter and all of its readers have processed.
local function trim_matches(fanout, records, owner)
  local oldest = math.huge
  for _, id in ipairs({ owner, unpack(read_list(fanout .. ':filters', 'readers:' .. owner)) }) do
    local record = redis.call('HGET', records, id)
    if record then oldest = math.min(oldest, string.match(parse_record(record).cursor, '^%d+')) end
  end
  if oldest < math.huge then redis.call('XTRIM', fanout .. ':matches:' .. owner, 'MINID', '~', text(oldest)) end
end
