-- @include text

-- KEYS of its own  fanout (hash), fanout (stream)
-- What a publish does for subscribers with a filter: see `filters`, and docs/design/0021-server-filter.md.

-- The words of a routing key, as broker/exchanges/topics.py splits it: the empty one has none.
local function split_words(key)
  local words = {}
  if key ~= '' then
    for word in string.gmatch(key .. '.', '([^.]*)%.') do words[#words + 1] = word end
  end
  return words
end

-- Whether the words of a routing key match a binding key: `*` is a word, `#` any number of words. `at[i]`: the first i words of the
-- binding key match the words so far. So the time is bounded for any number of `#`.
local function matches_topic(binding_key, words)
  local pattern = split_words(binding_key)
  local at = { [0] = true }
  for i = 1, #pattern do at[i] = pattern[i] == '#' and at[i - 1] end
  for _, word in ipairs(words) do
    local after = {}
    for i = 1, #pattern do
      if pattern[i] == '#' then
        after[i] = after[i - 1] or at[i]
      else
        after[i] = at[i - 1] and (pattern[i] == '*' or pattern[i] == word)
      end
    end
    at = after
  end
  return at[#pattern]
end

-- The subscribers whose binding keys match, each once.
local function matching_subscribers(filters, routing_key)
  local found = redis.call('HMGET', filters, 'key:' .. routing_key, 'patterns')
  local lists = { found[1] or nil }
  if found[2] then
    local words = split_words(routing_key)
    for _, pattern in ipairs(cjson.decode(found[2])) do
      if matches_topic(pattern, words) then lists[#lists + 1] = redis.call('HGET', filters, 'key:' .. pattern) end
    end
  end
  local ids, known = {}, {}
  for _, list in ipairs(lists) do
    for _, id in ipairs(cjson.decode(list)) do
      if not known[id] then
        known[id] = true
        ids[#ids + 1] = id
      end
    end
  end
  return ids
end

-- A subscriber that had processed everything has something to read from now on.
local function falls_behind(filters, cursors, id, entry, number)
  if redis.call('ZADD', cursors, 'XX', 'LT', 'CH', text(number - 1), id) == 1 then
    redis.call('HSET', filters, 'first:' .. id, entry)
  end
end

local function note_match(fanout, cursors, id, entry, match, number, keep)
  local filters, matches = fanout .. ':filters', fanout .. ':matches:' .. id
  local place = match .. ' ' .. text(number)
  if type(redis.pcall('XADD', matches, 'MAXLEN', '~', keep, entry, 'place', place)) == 'table' then
    -- The exchange's stream has gone back, and gives out ids again: heartbeats tell the subscriber.
    redis.call('UNLINK', matches)
    redis.call('XADD', matches, entry, 'place', place)
  end
  falls_behind(filters, cursors, id, entry, number)
  if string.sub(id, 1, 8) == 'durable.' then
    local readers = redis.call('HGET', filters, 'readers:' .. id)
    for _, reader in ipairs(readers and cjson.decode(readers) or {}) do falls_behind(filters, cursors, reader, entry, number) end
  end
end

-- Notes a broadcast in the `matches` of each subscriber that wants it. Either all of them have it then, or an error is raised, and the
-- broadcast is not in the stream.
local function note_matches(stream, fanout, cursors, entry, routing_key, keep)
  local number = tonumber(redis.call('HGET', fanout, 'count'))
  local filters, noted = fanout .. ':filters', {}
  local fine, problem = pcall(function()
    for _, id in ipairs(matching_subscribers(filters, routing_key)) do
      local match = redis.call('HINCRBY', filters, 'count:' .. id, 1)
      noted[#noted + 1] = id
      note_match(fanout, cursors, id, entry, text(match), number, keep)
    end
  end)
  if fine then return end
  redis.call('XDEL', stream, entry)
  redis.call('HINCRBY', fanout, 'count', -1)
  for _, id in ipairs(noted) do
    redis.call('HINCRBY', filters, 'count:' .. id, -1)
    redis.pcall('XDEL', fanout .. ':matches:' .. id, entry)
  end
  error(problem)
end
