-- @include beside
-- @include text
-- @include now
-- @include ageing
-- @include limiters

-- KEYS of its own  held (zset)  groups (zset)  group_times (zset)  queue (zset)  delayed (zset)  message (prefix of a hash)  wakeup (zset)
-- Message groups (docs/design/0023-groups.md). Of a queue that asks for them, only some messages of a group are admitted: ready, or with a
-- consumer. The others are in `held`, tag -> place. `groups` has one member for each message of a group that is held or admitted, all with
-- the score 0, so that they stand in the order of their bytes: the group, NUL, and
--   h, the place in 16 digits, tag: held;   r, tag: admitted, ready or with a consumer;   u, tag: of a fair queue, with a consumer.
-- Of a fair queue, `group_times` has for how long (ms) messages of each group were in work; '' is all of them.
-- Members are added and removed by name, never counted up and down: doing it twice, or half, changes no count.

-- What holds a message back is a table in these functions: `group`, `limiter` (include/limiters.lua), or both.

-- By the tag's character, as include/tag_flags.lua has it: whether it is of a group, or has a limiter.
local function is_grouped(tag)
  local flag = string.byte(tag, 20)
  return flag == 44 or flag == 64 or flag == 95 or flag == 43
end

local _group_functions

-- The functions, made when the first message of a group is met: each call of a script makes the functions anew that it comes by.
groups = function()
  if _group_functions then return _group_functions end
  -- Messages of a group that one call admits, and admitted ones that a message of a higher priority is compared with.
  local MOST_ADMITTED, MOST_COMPARED = 10, 10
  -- How far turns may run ahead of the clock (ms), where there are more than one a millisecond.
  local TURNS_AHEAD_MS = 1000
  -- A group of a fair queue is noisy that has more than this share of what is in work, and so many messages of that; or more than this share
  -- of the time (ms) that messages were in work within the last minutes. (The rule of SQS' fair queues.) It is while it has a backlog.
  local NOISY_SHARE, NOISY_IN_WORK, NOISY_MS, REMEMBERED_MS = 0.1, 30, 1000, 300000
  -- By how much (ms) its next message stands behind those of others that come meanwhile.
  local STANDS_BACK_MS = 10000
  -- Bytes of a group that tell it from others.
  local LONGEST_GROUP = 256
  local known = {}

  -- The settings and keys of the queue with this record; false where it has no groups.
  local function read(meta)
    local g = known[meta]
    if g ~= nil then return g end
    local record = redis.pcall('HMGET', meta, 'groups', 'ageing', 'newest', 'wakeup', 'quiet', 'group_rules', 'turn')
    local concurrency, width, order = string.match(type(record[1]) == 'string' and record[1] or '', '^(%S+) (%S+) (%S+)$')
    g = false
    if concurrency then
      local prefix, rest = string.match(meta, '^(.-)meta:({.*)$')
      g = {
        concurrency = tonumber(concurrency), width = tonumber(width), strict = order == 'strict', ageing = record[2],
        newest = record[3], quiet = record[5], ready = prefix .. 'queue:' .. rest, held = prefix .. 'held:' .. rest,
        groups = prefix .. 'groups:' .. rest, times = prefix .. 'group_times:' .. rest, index = prefix .. 'messages_index:' .. rest, delayed = prefix .. 'delayed:' .. rest,
        message = prefix .. 'message:' .. rest .. ':', wakeup = record[4] or prefix .. 'wakeup:' .. rest, meta = meta,
        turn = tonumber(record[7]) or 0,
      }
      local readable, rules = pcall(cjson.decode, record[6] or '')
      g.rules = readable and type(rules) == 'table' and rules
    end
    known[meta] = g
    return g
  end

  -- The text of a header or property of a stored message, or its whole number; false without one. `quoted` is its name as a pattern. A text
  -- within JSON has its quotes escaped, so that only a name of a field matches.
  local function header_in(envelope, quoted)
    local text_at = select(2, string.find(envelope, '"' .. quoted .. '": ?"'))
    if not text_at then return string.match(envelope, '"' .. quoted .. '": ?(%-?%d+)') or false end
    local said = string.match(envelope, '^[^"\\]*', text_at + 1)
    local ended = text_at + #said + 1
    if string.sub(envelope, ended, ended) ~= '"' then
      -- It has escaped characters.
      while ended <= #envelope and string.sub(envelope, ended, ended) ~= '"' do
        ended = ended + (string.sub(envelope, ended, ended) == '\\' and 2 or 1)
      end
      local fine, decoded = pcall(cjson.decode, '[' .. string.sub(envelope, text_at, ended) .. ']')
      said = fine and type(decoded[1]) == 'string' and string.gsub(decoded[1], '%z', ' ') or ''
    end
    return said ~= '' and said
  end

  -- What a stored message names in its headers or properties: its group, where its queue has groups, and its limiter; false without both.
  local function holders_in(envelope, has_groups)
    local group = has_groups and header_in(envelope, 'x%-message%-group')
    local limiter = string.find(envelope, '"x-limiter"', 1, true) and header_in(envelope, 'x%-limiter')
    if limiter and not limiters().read(limiter) then limiter = false end
    if not group and not limiter then return false end
    return { group = group and string.sub(group, 1, LONGEST_GROUP), limiter = limiter }
  end

  local function held_member(group, place, tag)
    return group .. '\0h' .. string.format('%016.0f', place) .. tag
  end

  local function ready_member(group, tag) return group .. '\0r' .. tag end
  local function unacked_member(group, tag) return group .. '\0u' .. tag end

  -- Whether one more message of the group may be admitted.
  local function has_room(g, group)
    local concurrency, width = g.concurrency, g.width
    local rule = g.rules and g.rules[group]
    if type(rule) == 'table' then
      if rule.paused then return false end
      concurrency = concurrency and tonumber(rule.concurrency) or concurrency
      width = width and tonumber(rule.weight) or width
    end
    if concurrency and redis.call('ZLEXCOUNT', g.groups, '[' .. group .. '\0r', '(' .. group .. '\0v') >= concurrency then return false end
    return not width or redis.call('ZLEXCOUNT', g.groups, '[' .. group .. '\0r', '(' .. group .. '\0s') < width
  end

  -- The member of the group's held message that comes next, and its tag; nil without one.
  local function next_held(g, group)
    local first = redis.call('ZRANGE', g.groups, '[' .. group .. '\0h', '(' .. group .. '\0i', 'BYLEX', 'LIMIT', 0, 1)[1]
    return first, first and string.sub(first, #group + 19)
  end

  -- Whether a message whose tag is in `held` does wait there: a script that failed may have left the tag behind. Returns its field `rank`,
  -- '' without one; false where it does not.
  local function is_held(g, tag)
    local fields = redis.pcall('HMGET', g.message .. tag, 'group', 'owner', 'rank', 'died', 'limiter')
    if fields.err or not (fields[1] or fields[5]) then
      redis.call('HINCRBY', g.meta, 'vanished', 1)
      return false
    elseif fields[4] then
      -- The sweep finishes its death.
      redis.call('ZADD', g.delayed, text(now_ms()), tag)
      return false
    elseif fields[2] or redis.call('ZSCORE', g.ready, tag) or redis.call('ZSCORE', g.delayed, tag) then
      return false
    end
    return fields[3] or ''
  end

  -- The time by which a message that is admitted now gets its place: none of two is the same, or those that were published first would have
  -- turns again within a millisecond.
  local function next_turn(g)
    local now = newest_of(g.newest, now_ms())
    g.turn = g.turn >= now and g.turn < now + TURNS_AHEAD_MS and g.turn + 1 or now
    return g.turn
  end

  -- Whether a group of a fair queue takes more than its share, and has a message waiting behind the one that is admitted.
  local function is_noisy(g, group)
    if not g.width or g.ageing or redis.call('ZLEXCOUNT', g.groups, '[' .. group .. '\0h', '(' .. group .. '\0i') < 2 then return false end
    local all = tonumber(redis.call('ZSCORE', g.times, '') or 0)
    if all >= NOISY_MS and tonumber(redis.call('ZSCORE', g.times, group) or 0) > NOISY_SHARE * all then return true end
    local in_work = redis.call('ZLEXCOUNT', g.groups, '[' .. group .. '\0u', '(' .. group .. '\0v')
    return in_work >= NOISY_IN_WORK and in_work > NOISY_SHARE * redis.call('ZCARD', g.index)
  end

  -- Counts the time that a message of a fair queue was with its consumer.
  local function count_time(g, group, claimed)
    local ms = now_ms() - (tonumber(claimed) or math.huge)
    if ms <= 0 then return end
    redis.call('ZINCRBY', g.times, text(ms), group)
    if redis.call('ZINCRBY', g.times, text(ms), '') == text(ms) then redis.call('PEXPIRE', g.times, text(REMEMBERED_MS)) end
  end

  -- Admits what the group has room for, `MOST_ADMITTED` messages at most. Each stands behind all that are ready in its priority: groups
  -- have turns. Returns how many it admitted.
  local function admit(g, group)
    local admitted = 0
    for _ = 1, MOST_ADMITTED do
      local member, tag = next_held(g, group)
      if not member or not has_room(g, group) then break end
      local place = redis.call('ZSCORE', g.held, tag)
      local rank = place and is_held(g, tag)
      if rank then
        local score = rank_of(tonumber(place), rank) * level_of(g.ageing) + next_turn(g) + (is_noisy(g, group) and STANDS_BACK_MS or 0)
        redis.call('ZADD', g.groups, 0, ready_member(group, tag))
        redis.call('ZADD', g.ready, text(score), tag)
        admitted = admitted + 1
      end
      redis.call('ZREM', g.held, tag)
      redis.call('ZREM', g.groups, member)
    end
    if admitted > 0 then redis.call('HSET', g.meta, 'turn', text(g.turn)) end
    if admitted > 0 and not g.quiet then redis.call('ZADD', g.wakeup, 0, 'work') end
    return admitted
  end

  -- Lets a message take the place of an admitted one of a lower priority that is ready, which is held then; with `moved`, of one that was
  -- published later, too. Returns whether it has.
  local function displace(g, tag, group, score, moved)
    local rank = math.floor(score / PRIORITY_BAND)
    if g.ageing or (rank >= 255 and not moved) then return false end
    local worst, lowest
    for _, member in ipairs(redis.call('ZRANGE', g.groups, '[' .. group .. '\0r', '(' .. group .. '\0s', 'BYLEX', 'LIMIT', 0, MOST_COMPARED)) do
      local other = string.sub(member, #group + 3)
      local place = tonumber(redis.call('ZSCORE', g.ready, other))
      if place and place > (lowest or 0) then worst, lowest = other, place end
    end
    local other_rank = lowest and math.floor(lowest / PRIORITY_BAND)
    local rule = g.rules and g.rules[group]
    if not worst or (type(rule) == 'table' and rule.paused) then return false end
    -- It was the next of its priority, and is again: those behind it were published later.
    local place = other_rank * PRIORITY_BAND + (tonumber(string.sub(worst, 1, 11), 16) or 0)
    local later = place > score or (place == score and worst > tag)
    if other_rank < rank or (other_rank == rank and not (moved and later)) then return false end
    redis.call('ZADD', g.groups, 0, ready_member(group, tag), 0, held_member(group, place, worst))
    redis.call('ZADD', g.ready, text(score), tag)
    redis.call('ZADD', g.held, text(place), worst)
    redis.call('ZREM', g.ready, worst)
    redis.call('ZREM', g.groups, ready_member(group, worst))
    return true
  end

  -- Gives a message whose time has come its place: ready, at `score`, or held. Returns whether it is held; the caller then sees to it that
  -- its hash has `group`, and calls `go_on`. `new`: it cannot have a place already. `moved`: it comes from another shard, perhaps behind
  -- messages that were published later.
  local function enter(meta, tag, holders, score, new, moved)
    local g, group = read(meta), holders.group
    score = tonumber(score)
    if not g or not group then
      local ready = beside(meta, 'queue')
      redis.call('ZADD', ready, text(score), tag)
      return false
    end
    local ready, unacked = ready_member(group, tag), unacked_member(group, tag)
    if not new and (redis.call('ZSCORE', g.groups, ready) or redis.call('ZSCORE', g.groups, unacked)) then
      redis.call('ZADD', g.groups, 0, ready)
      redis.call('ZADD', g.ready, text(score), tag)
      redis.call('ZREM', g.groups, unacked)
      return false
    end
    local room = has_room(g, group)
    if room and not next_held(g, group) then
      redis.call('ZADD', g.groups, 0, ready)
      redis.call('ZADD', g.ready, text(score), tag)
      return false
    end
    if not room and displace(g, tag, group, score, moved) then return false end
    redis.call('ZADD', g.held, text(score), tag)
    redis.call('ZADD', g.groups, 0, held_member(group, score, tag))
    return true
  end

  -- What follows for a group when a message of it was held: nothing, unless it has got room by a change of its settings.
  local function go_on(meta, holders)
    local g = holders.group and read(meta)
    if g then admit(g, holders.group) end
  end

  -- Takes a message out of its group, whose next one is admitted, and gives back what it has of its limiter. The message's hash may be gone;
  -- `place` is its score in `held`, where it is not there any more.
  local function leave(meta, tag, holders, place)
    local g = holders and holders.group and read(meta)
    if not g and not (holders and holders.limiter) then return end
    local held = limiters().queue_of(meta).held
    local stands = not place and redis.call('ZSCORE', held, tag)
    place = place or stands
    if stands then redis.call('ZREM', held, tag) end
    if holders.limiter then
      limiters().forget(meta, tag, holders.limiter, place)
      limiters().give_back(meta, tag, holders.limiter)
    end
    if not g then return end
    local group = holders.group
    if place then redis.call('ZREM', g.groups, held_member(group, tonumber(place), tag)) end
    if g.width and holders.claimed then count_time(g, group, holders.claimed) end
    if redis.call('ZREM', g.groups, ready_member(group, tag), unacked_member(group, tag)) > 0 then admit(g, group) end
  end

  -- The group and the limiter of a stored message, and since when its consumer has it; false where it has neither.
  local function group_of(hash)
    local fields = redis.pcall('HMGET', hash, 'group', 'limiter', 'claimed', 'owner')
    return not fields.err and (fields[1] or fields[2]) and { group = fields[1], limiter = fields[2], claimed = fields[4] and fields[3] }
  end

  local function holders_of(meta, tag)
    return group_of(limiters().queue_of(meta).message .. tag)
  end

  -- A message that was with a consumer is ready again.
  local function return_to_group(meta, tag)
    local holders = holders_of(meta, tag)
    if not holders then return end
    if holders.limiter then limiters().give_back(meta, tag, holders.limiter) end
    local g, group = read(meta), holders.group
    if not g or not group then return end
    redis.call('ZADD', g.groups, 0, ready_member(group, tag))
    redis.call('ZREM', g.groups, unacked_member(group, tag))
    -- One of a higher priority may have come meanwhile.
    local _, first = next_held(g, group)
    local place = first and redis.call('ZSCORE', g.held, first)
    if not place or not displace(g, first, group, tonumber(place)) then return end
    redis.call('ZREM', g.held, first)
    redis.call('ZREM', g.groups, held_member(group, tonumber(place), first))
  end

  -- A message that waits for its limiter has no place in its group, unless the queue is strict about the order. Returns how many of the
  -- group were admitted.
  local function give_place(meta, tag)
    local g = read(meta)
    local holders = g and not g.strict and holders_of(meta, tag)
    local group = holders and holders.group
    if group and redis.call('ZREM', g.groups, ready_member(group, tag), unacked_member(group, tag)) > 0 then return admit(g, group) end
    return 0
  end

  -- A message that was with a consumer waits for a time: others of its group go on, unless the queue is strict about their order.
  local function step_aside(meta, tag)
    local g, holders = read(meta), holders_of(meta, tag)
    if not holders then return end
    if g and not g.strict then
      leave(meta, tag, holders)
    elseif holders.limiter then
      limiters().give_back(meta, tag, holders.limiter)
    end
  end

  -- Messages have gone to a consumer: in a fair queue the next of their groups are admitted. Returns how many.
  local function claimed(meta, tags)
    local g = read(meta)
    if not g or not g.width then return 0 end
    local admitted, turns = 0, {}
    for _, tag in ipairs(tags) do
      local group = (group_of(g.message .. tag) or {}).group
      if group then
        redis.call('ZADD', g.groups, 0, unacked_member(group, tag))
        redis.call('ZREM', g.groups, ready_member(group, tag))
        turns[#turns + 1] = group
      end
    end
    for _, group in ipairs(turns) do admitted = admitted + admit(g, group) end
    return admitted
  end

  _group_functions = {
    holders_in = holders_in, enter = enter, go_on = go_on, leave = leave, group_of = group_of, return_to_group = return_to_group,
    step_aside = step_aside, give_place = give_place, claimed = claimed, read = read, admit = admit, has_room = has_room, next_held = next_held,
    is_held = is_held,
    ready_member = ready_member, unacked_member = unacked_member, held_member = held_member,
  }
  return _group_functions
end
