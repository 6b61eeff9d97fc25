#!lua flags=allow-oom
-- Holds messages of one queue against the rules: a hash stands in exactly one place, its fields fit that place, and it expires
-- only where its queue does. Repairs what it finds, if asked. What it sees is one moment: a message in motion is never half way.
-- KEYS  1 queue (zset)  2 delayed (zset)  3 messages_index (zset)  4 message (prefix of a hash)  5 wakeup (zset)  6 meta (hash)
--       7 schedule_wakeup (zset)  8 expiry (zset)  9 dlx_outbox (zset)  10 dead (zset)  11 trash (zset)
-- ARGV  1 repair (0/1)  2 priority 0 comes first (0/1)  3 time that a claimed message gets whose place was lost (ms), then tags
-- Returns per violation: tag, rule, what was found.
-- Bound: the tags that are given.
-- @include beside
-- @include now
-- @include ageing
-- @include state_keys
-- @include groups

local NAMES = { 'ready', 'delayed', 'index', 'dlx_outbox', 'dead', 'held' }
local PLACES_OF_MESSAGES = #NAMES
local queue = state_keys(0)
queue.held = beside(queue.meta, 'held')
-- The trash is a list of sets.
for _, number in ipairs(redis.call('ZRANGE', queue.trash, 0, -1)) do
  NAMES[#NAMES + 1] = 'trash ' .. number
  queue['trash ' .. number] = queue.trash .. ':' .. number
end
local repair = ARGV[1] == '1'
local low_first = ARGV[2] == '1'
local now = now_ms()
local record = redis.call('HMGET', queue.meta, 'id', 'ttl', 'dlx', 'ageing')
local known, ttl, exchange, level = record[1], record[2], record[3], level_of(record[4])
local found = {}

local function report(tag, rule, what)
  found[#found + 1] = tag
  found[#found + 1] = rule
  found[#found + 1] = what
end

-- Where the message's hash does not say it, its score follows from its priority and from when it became ready, or will.
local function original_score(hash, tag)
  local since = tonumber(redis.call('ZSCORE', queue.delayed, tag) or '') or tonumber(string.sub(tag, 1, 11), 16) or now
  if not (since >= 0 and since < PRIORITY_BAND) then since = now end
  local rank = tonumber(redis.call('HGET', hash, 'rank'))
  if rank then return text(rank * level + since) end
  local envelope = string.match(redis.call('HGET', hash, 'payload'), '^[^\n]*')
  local readable, data = pcall(cjson.decode, envelope)
  local properties = readable and type(data) == 'table' and data.properties
  local priority = type(properties) == 'table' and tonumber(properties.priority) or 0
  return text((low_first and priority or 255 - priority) * level + since)
end

-- When a message that was delayed is due: the time in its score, and after its own `delay` at the latest. After a step of the clock
-- back the score of a message with an ETA may lie behind that: it comes late, and never early.
local function due_of(fields)
  local score, delay, rank = tonumber(fields[1]), fields[7], fields[8]
  local due = score - rank_of(score, rank) * level
  return delay and math.min(due, now + delay) or due
end

local function put(place, score, tag)
  local group = place == 'ready' and is_grouped(tag) and groups().group_of(queue.message .. tag)
  if group and groups().enter(queue.meta, tag, group, score, false) then
    groups().go_on(queue.meta, group)
    return redis.call('ZSCORE', queue.held, tag) and 'held' or place
  end
  redis.call('ZADD', queue[place], score, tag)
  local wakeup = place == 'ready' and queue.wakeup or queue.schedule_wakeup
  redis.call('ZADD', wakeup, 0, place == 'ready' and 'work' or 'due')
  if ttl then
    redis.call('PEXPIRE', queue[place], ttl)
    redis.call('PEXPIRE', wakeup, ttl)
  end
  return place
end

-- A message in no set goes where its fields say that it was. A claimed one goes back into the index and not into the queue: its
-- consumer may well be at work, and keeps it by its next heartbeat.
local function put_home(hash, tag, fields)
  local score, owner, died = fields[1], fields[3], fields[4] or fields[5]
  if owner then
    put('index', text(now + ARGV[3]), tag)
    return 'index'
  elseif died then
    put(exchange and 'dlx_outbox' or 'dead', fields[5] or text(now), tag)
    return exchange and 'dlx_outbox' or 'dead'
  elseif score and due_of(fields) > now then
    put('delayed', text(due_of(fields)), tag)
    return 'delayed'
  end
  return put('ready', score or original_score(hash, tag), tag)
end

-- Of several places that one is right which the hash's own fields name; else the one from which it is delivered soonest.
local function right_place(scores, fields)
  if fields[3] and scores.index then return 'index' end
  if fields[4] or fields[5] then
    if scores.dlx_outbox then return 'dlx_outbox' end
    if scores.dead then return 'dead' end
  end
  if fields[1] and not fields[3] and scores.delayed then return 'delayed' end
  for _, name in ipairs(NAMES) do
    if scores[name] then return name end
  end
end

-- The fields that do not belong to a message in `place`, and whether it lacks some.
local function misfits(place, fields)
  local wrong, lacks = {}, {}
  local waits = place == 'ready' or place == 'held'
  if waits and fields[1] then wrong[#wrong + 1] = 'score' end
  if not waits and not fields[1] then lacks[#lacks + 1] = 'score' end
  if place ~= 'index' and fields[3] then wrong[#wrong + 1] = 'owner' end
  if place == 'index' and not (fields[2] and fields[3]) then lacks[#lacks + 1] = fields[2] and 'owner' or 'claim' end
  return wrong, lacks
end

local function check_fields(hash, tag, place, fields)
  local wrong, lacks = misfits(place, fields)
  if #wrong + #lacks == 0 then return place end
  local what = {}
  for _, name in ipairs(wrong) do what[#what + 1] = 'has ' .. name end
  for _, name in ipairs(lacks) do what[#what + 1] = 'lacks ' .. name end
  report(tag, 'wrong-fields', place .. ', ' .. table.concat(what, ', '))
  if not repair then return place end
  local score = fields[1] or original_score(hash, tag)
  if place == 'index' and not (fields[2] and fields[3]) then
    -- No process can settle it or keep it: what the sweep would do at its deadline is done now.
    redis.call('ZREM', queue.index, tag)
    local to = put('ready', score, tag)
    redis.call('HDEL', hash, 'score', 'delay', 'owner')
    return to
  end
  if #wrong > 0 then redis.call('HDEL', hash, unpack(wrong)) end
  if #lacks > 0 then redis.call('HSET', hash, 'score', score) end
  return place
end

-- A position that no clock and no priority can give would keep the message where it is for ever.
local function check_position(hash, tag, place, fields)
  local position = tonumber(redis.call('ZSCORE', queue[place], tag))
  local last = (place == 'ready' or place == 'held') and 256 * PRIORITY_BAND or PRIORITY_BAND
  if position and position >= 0 and position < last then return end
  report(tag, 'wrong-position', place .. ' at ' .. tostring(position))
  if not repair then return end
  local right = text(now)
  if place == 'ready' or place == 'held' then
    right = original_score(hash, tag)
    if place == 'held' then redis.call('ZREM', queue.held, tag) end
    place = 'ready'
  elseif place == 'delayed' and fields[1] then
    right = text(due_of(fields))
  elseif place == 'index' then
    right = text(now + ARGV[3])
  end
  put(place, right, tag)
end

local function check_life(hash, tag)
  if not known then return end
  local left = redis.call('PTTL', hash)
  if left >= 0 and not ttl then
    report(tag, 'expires', 'in ' .. left .. ' ms, in a lasting queue')
    if repair then redis.call('PERSIST', hash) end
  elseif left == -1 and ttl then
    report(tag, 'never-expires', 'in a transient queue')
    if repair then redis.call('PEXPIRE', hash, ttl) end
  end
end

local function check_expiry(tag, place, expires)
  if (place ~= 'ready' and place ~= 'held') or not expires then return end
  local stands = redis.call('ZSCORE', queue.expiry, tag)
  if stands and tonumber(stands) == tonumber(expires) then return end
  report(tag, 'no-expiry', 'expires at ' .. expires .. ', which the list of expiries does not have')
  if not repair then return end
  redis.call('ZADD', queue.expiry, expires, tag)
  redis.call('ZADD', queue.schedule_wakeup, 0, 'due')
  if ttl then redis.call('PEXPIRE', queue.expiry, ttl) end
end

-- A message that is ready, held or in work stands among those of its group. One that has expired as a task has no turn.
local function check_group(tag, place)
  if not is_grouped(tag) then return end
  local g = is_grouped(tag) and groups().read(queue.meta)
  local group = g and (groups().group_of(queue.message .. tag) or {}).group
  if place == 'held' and limiters().holds(queue.meta, tag) then return end
  if not group or redis.call('HGET', queue.message .. tag, 'task_expiry') == 'over' then return end
  local member = groups().ready_member(group, tag)
  if place == 'held' then
    member = groups().held_member(group, tonumber(redis.call('ZSCORE', queue.held, tag)), tag)
  elseif place == 'index' then
    if redis.call('ZSCORE', g.groups, member) then return end
    member = g.width and groups().unacked_member(group, tag) or member
  elseif place ~= 'ready' then
    return
  end
  if redis.call('ZSCORE', g.groups, member) then return end
  report(tag, 'not-in-group', place .. ', group ' .. string.sub(group, 1, 100))
  if repair then redis.call('ZADD', g.groups, 0, member) end
end

-- A message that waits for its limiter stands among those, and one in work has a place where the limiter counts these.
local function check_limiter(tag, place, fields)
  local said = is_grouped(tag) and fields[9]
  local limiter, q = said and limiters().read(said), limiters().queue_of(queue.meta)
  if not limiter or fields[10] == 'over' or fields[11] then return end
  if place == 'index' and limiter.rule.concurrency then
    local key = limiters().key_of(q, 'limiter_places', limiter)
    if redis.call('ZSCORE', key, tag .. '\0' .. q.rest) then return end
    report(tag, 'not-in-limiter', 'in work, limiter ' .. string.sub(limiter.id, 1, 100))
    if repair then redis.call('ZADD', key, text(now), tag .. '\0' .. q.rest) end
  elseif place == 'held' and not fields[12] and not limiters().holds(queue.meta, tag) then
    report(tag, 'not-in-limiter', 'held, limiter ' .. string.sub(limiter.id, 1, 100))
    if not repair then return end
    local score = redis.call('ZSCORE', queue.held, tag)
    redis.call('ZREM', queue.held, tag)
    redis.call('ZADD', queue.ready, score, tag)
    redis.call('ZADD', queue.wakeup, 0, 'work')
  end
end

local function remove(hash, tag)
  redis.call('UNLINK', hash)
  for _, name in ipairs(NAMES) do redis.call('ZREM', queue[name], tag) end
  redis.call('ZREM', queue.expiry, tag)
  if known then redis.call('HINCRBY', queue.meta, 'vanished', 1) end
end

-- Returns whether there is a message behind the tag.
local function check_hash(hash, tag, places_text)
  if redis.call('EXISTS', hash) == 0 then
    if places_text ~= '' then
      report(tag, 'tag-without-hash', places_text)
      if repair then remove(hash, tag) end
    end
    return false
  elseif redis.call('HSTRLEN', hash, 'payload') > 0 then
    return true
  elseif redis.call('HEXISTS', hash, 'body') == 1 then
    report(tag, 'no-headers', 'a body without headers and properties; look at it before you delete it')
  else
    report(tag, 'no-payload', 'neither headers nor body')
    if repair then remove(hash, tag) end
  end
  return false
end

local function check(tag)
  local hash = queue.message .. tag
  local scores, where, trashed = {}, {}, 0
  for i, name in ipairs(NAMES) do
    scores[name] = redis.call('ZSCORE', queue[name], tag)
    if scores[name] then
      where[#where + 1] = name
      if i > PLACES_OF_MESSAGES then trashed = trashed + 1 end
    end
  end
  -- What is in the trash alone is being freed.
  if trashed > 0 and trashed == #where then return end
  if not check_hash(hash, tag, table.concat(where, ', ')) then return end
  local fields = redis.call('HMGET', hash, 'score', 'claim', 'owner', 'reason', 'died', 'expires', 'delay', 'rank',
    'limiter', 'task_expiry', 'retried', 'group')
  local place = where[1]
  if #where == 0 then
    report(tag, 'no-place', 'in no set')
    if not repair then return end
    place = put_home(hash, tag, fields)
    if place == 'ready' or place == 'held' then
      redis.call('HDEL', hash, 'score', 'delay')
      fields[1] = false
    end
  elseif #where > 1 then
    place = right_place(scores, fields)
    report(tag, 'several-places', table.concat(where, ', ') .. '; right is ' .. place)
    if not repair then return end
    for _, name in ipairs(where) do
      if name ~= place then redis.call('ZREM', queue[name], tag) end
    end
  end
  place = check_fields(hash, tag, place, fields)
  check_position(hash, tag, place, fields)
  check_life(hash, tag)
  check_expiry(tag, place, fields[6])
  check_group(tag, place)
  check_limiter(tag, place, fields)
end

-- One that cannot be looked at, since somebody else has written there, keeps no other from it.
local function check_alone(tag)
  local fine, raised = pcall(check, tag)
  if fine then return end
  local text = type(raised) == 'table' and raised.err or tostring(raised)
  if string.find(text, 'WRONGTYPE', 1, true) then
    report(tag, 'wrong-type', 'its key, or one of its queue, is of another type')
  elseif type(raised) == 'table' then
    error(raised)
  else
    report(tag, 'wrong-type', 'a field that should be a number is none')
  end
end

for i = 4, #ARGV do check_alone(ARGV[i]) end
return found
