-- @include text
-- @include now

-- KEYS of its own  limiter_bucket (string)  limiter_window (zset)  limiter_places (zset)  limiters (zset)  limiter_rules (hash)
--       limiter_queues (zset)  limited (zset)  limited_until (zset)  held (zset)  queue (zset)  delayed (zset)  messages_index (zset, read)
--       message (prefix of a hash)  wakeup (zset)  meta (hash)  schedule_wakeup (zset)  consumers (zset, read)
-- Limiters (docs/design/0024-limiters.md). A message names its limiter, its rule, its key and its cost in one text, such as
-- `stripe:100/s burst=20 cost=3 key=c7`; what is limited together is its id, `stripe:c7`. A claim asks the limiter for each such message
-- that it comes by. One that is refused goes to `held`, tag -> place, and stands in `limited`: id, NUL, place in 16 digits, tag, all with
-- the score 0. `limited_until` has when each of these ids is looked at again, and `limiter_queues` (id, NUL, queue) which queues hold some.

local groups -- include/groups.lua makes it
local _limiter_functions

local function limiters()
  if _limiter_functions then return _limiter_functions end
  -- Messages of a limiter that one call admits, queues that it does that in, places whose messages it looks for.
  local MOST_ADMITTED, MOST_QUEUES, MOST_PLACES = 100, 10, 20
  -- Limiters that are remembered for who asks which there are.
  local MOST_IDS = 10000
  -- When a limiter of places is looked at again (ms), though no place was given back: a script may have failed that should have.
  local LOOK_AGAIN_MS = 5000
  -- A bucket of more than one token is looked at when it has the tokens of so many ms (at most as many as it holds): not for each token.
  local PACE_MS = 20
  -- As `x-rate-limit`: tokens of a tenth of a second, and one at least.
  local BURST_MS = 100
  -- For how long (ms) tokens are booked for who has asked, and when he is to ask again.
  local BOOKED_MS, ASK_AGAIN_MS = 2500, 1000
  -- For how long (ms) a bucket is remembered that is full again.
  local KEPT_MS = 60000
  local UNITS = { s = 1000, m = 60000, h = 3600000 }
  -- What adding up fractions may lose.
  local TOLERANCE = 1e-6
  local queues, rules, read_texts = {}, {}, {}
  -- Who has taken a place in this call: a claim adds its messages to the index when it has chosen them all.
  local fresh = {}

  -- Milliseconds since the epoch, with fractions.
  local function time_ms()
    local _, us = now_ms_and_us()
    return us / 1000
  end

  local function queue_of(meta)
    local q = queues[meta]
    if q then return q end
    local prefix, rest = string.match(meta, '^(.-)meta:({.*)$')
    q = {
      meta = meta, prefix = prefix, rest = rest, ready = prefix .. 'queue:' .. rest, held = prefix .. 'held:' .. rest,
      limited = prefix .. 'limited:' .. rest, untils = prefix .. 'limited_until:' .. rest, index = prefix .. 'messages_index:' .. rest,
      delayed = prefix .. 'delayed:' .. rest, message = prefix .. 'message:' .. rest .. ':', refused = {}, first = {}, to_admit = {},
    }
    queues[meta] = q
    return q
  end

  -- The rule in `100/s burst=20`, `100/m window`, `concurrency=4`; nil where it is none.
  local function rule_of(words)
    local rule = {}
    for word in string.gmatch(words, '%S+') do
      local number, unit = string.match(word, '^([%d.]+)/([smh])$')
      local name, value = string.match(word, '^(%a+)=([%d.]+)$')
      if unit and tonumber(number) then
        rule.number, rule.span = tonumber(number), UNITS[unit]
      elseif word == 'window' then
        rule.window = true
      elseif name and tonumber(value) then
        rule[name] = tonumber(value)
      end
    end
    -- Without the cost of a message.
    rule.words = string.gsub(words, ' ?cost=%S*', '')
    if rule.concurrency then return rule end
    if not rule.number or rule.number <= 0 then return nil end
    rule.rate = rule.number / rule.span
    rule.burst = rule.burst or math.max(1, rule.rate * BURST_MS)
    return rule
  end

  -- What a message says of its limiter; nil where that cannot be read.
  local function read(said)
    if read_texts[said] then return read_texts[said] end
    local name, words = string.match(said, '^([%w._-]+):(.*)$')
    if not name then return nil end
    local key_at = string.find(words, ' key=', 1, true)
    local key = key_at and string.sub(words, key_at + 5)
    local rule = rule_of(key_at and string.sub(words, 1, key_at - 1) or words)
    if not rule then return nil end
    local limiter = { name = name, id = key and name .. ':' .. key or name, rule = rule, cost = rule.cost or 1, words = rule.words }
    read_texts[said] = limiter
    return limiter
  end

  -- What holds for a limiter: its rule, which is an operator's where that counts in the same way, and for how many ms nothing may pass.
  local function rule_for(q, limiter)
    local found = rules[limiter.id]
    if found then return found end
    found = { wait = 0, rule = limiter.rule }
    local now = now_ms()
    for i, said in ipairs(redis.call('HMGET', q.prefix .. 'limiter_rules', limiter.name, limiter.id)) do
      local from, till, words = string.match(said or '', '^(%d+) (%d+) (.*)$')
      if from and tonumber(from) > now then
        -- The clock went back behind the beginning of a hold, which does not become longer.
        from, till = now, now + till - from
        said = text(from) .. ' ' .. text(till) .. ' ' .. words
        if not q.only_looks then redis.call('HSET', q.prefix .. 'limiter_rules', i == 1 and limiter.name or limiter.id, said) end
      end
      if till then found.wait = math.max(found.wait, till - now) end
      local rule = words and rule_of(words)
      if rule and (rule.concurrency == nil) == (limiter.rule.concurrency == nil) then found.rule = rule end
    end
    rules[limiter.id] = found
    return found
  end

  local function key_of(q, kind, limiter) return q.prefix .. kind .. ':{' .. limiter.id .. '}' end

  -- How many tokens a bucket has now. Where the clock went back, time begins anew, and nobody gets more. Then: whether it did, whether the
  -- bucket is new, and its booking. Who needs several tokens books them, where others take one after the other as they come: nobody else
  -- has them then, until `till`, soon after it has last asked. Once it has them, `cost` is 0: it may not book again before `till`, so
  -- that others have as many.
  local function tokens_in(key, rule, now)
    local tokens, at, booked = string.match(redis.call('GET', key) or '', '^(%S+) (%S+)(.*)$')
    if not (tonumber(tokens) and tonumber(at)) then return rule.burst, false, true end
    local went_back = at - now > 0
    local cost, till, who = string.match(booked, '^ (%S+) (%S+) (.*)$')
    local booking = cost and not went_back and tonumber(till) > now and { cost = tonumber(cost), till = tonumber(till), who = who } or nil
    return math.min(rule.burst, tokens + math.max(0, now - at) * rule.rate), went_back, false, booking
  end

  local function put_tokens(key, rule, tokens, now, booking)
    local full_in = math.max(0, math.ceil((rule.burst - tokens) / rule.rate))
    local booked = booking and string.format(' %.3f %.3f ', booking.cost, booking.till) .. booking.who or ''
    redis.call('SET', key, string.format('%.6f %.3f', tokens, now) .. booked, 'PX', text(full_in + KEPT_MS))
  end

  -- Forgets what has left the window. Where the clock went back, all that is in it keeps its distance from now.
  local function slide(key, rule, now)
    local newest = tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2] or 0)
    if newest > now then
      local found = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
      for i = 1, #found, 2 do redis.call('ZADD', key, string.format('%.3f', found[i + 1] - (newest - now)), found[i]) end
      redis.call('PEXPIRE', key, text(rule.span + KEPT_MS))
    end
    redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.3f', now - rule.span))
  end

  -- Gives back places whose messages are with no consumer: a script failed that should have done so, or the queue was deleted.
  -- Of many places it looks at some, at others with the next call.
  local function clear_places(q, key)
    local cleared, parts = false, math.ceil(redis.call('ZCARD', key) / MOST_PLACES)
    local first = math.floor(time_ms() * 1000 % math.max(1, parts)) * MOST_PLACES
    for _, place in ipairs(redis.call('ZRANGE', key, text(first), text(first + MOST_PLACES - 1))) do
      local tag, rest, claim = string.match(place, '^(%Z+)%z(%b{})%z?(%d*)$')
      local stands = fresh[place] or tag and redis.call('ZSCORE', q.prefix .. 'messages_index:' .. rest, tag)
        and (claim == '' or redis.call('HGET', q.prefix .. 'message:' .. rest .. ':' .. tag, 'claim') == claim)
      if not stands then
        redis.call('ZREM', key, place)
        cleared = true
      end
    end
    return cleared
  end

  -- Each kind of rule: how long `cost` more has to wait (ms; 0: not at all) behind `spent`, which others are to have first; when it is worth
  -- a look; and what `take` has to know. `who` asks: a queue's first message, or tasks of one cost that wait in `with limit`; `books`: for how
  -- long (ms) it would wait at most, false where it books nothing.
  local function wait_for_places(q, limiter, rule, spent)
    local key = key_of(q, 'limiter_places', limiter)
    local has = redis.call('ZCARD', key)
    if has + spent >= rule.concurrency and clear_places(q, key) then has = redis.call('ZCARD', key) end
    local wait = has + spent >= rule.concurrency and LOOK_AGAIN_MS or 0
    return wait, wait, has == 0
  end

  local function wait_for_window(q, limiter, rule, spent)
    local key, now = key_of(q, 'limiter_window', limiter), time_ms()
    slide(key, rule, now)
    local has = redis.call('ZCARD', key)
    local over = math.floor(has + spent - rule.number)
    if over < 0 then return 0, 0, has == 0 end
    local first = redis.call('ZRANGE', key, text(over), text(over), 'WITHSCORES')[2]
    local wait = math.max(1, first and first + rule.span - now or rule.span)
    return wait, wait
  end

  local function wait_for_tokens(q, limiter, rule, spent, who, books)
    local key, now = key_of(q, 'limiter_bucket', limiter), time_ms()
    local tokens, went_back, is_new, booking = tokens_in(key, rule, now)
    if went_back then put_tokens(key, rule, tokens, now) end
    local wanted, mine = math.min(limiter.cost, rule.burst), booking and booking.who == who
    if booking and not mine then spent = spent + booking.cost end
    if tokens - spent >= wanted - TOLERANCE then return 0, 0, is_new, tokens, booking end
    local worth = math.max(wanted, math.min(rule.burst, rule.rate * PACE_MS))
    local wait, look = (wanted - tokens + spent) / rule.rate, (worth - tokens + spent) / rule.rate
    if wanted > 1 and books and wait <= books then
      if not booking or mine == (booking.cost > 0) then put_tokens(key, rule, tokens, now, { cost = wanted, till = now + BOOKED_MS, who = who }) end
      look = math.min(look, ASK_AGAIN_MS)
    elseif booking and not mine then
      -- It may not be renewed.
      look = math.min(look, ASK_AGAIN_MS)
    end
    return wait, look
  end

  local function wait_for(q, limiter, spent, who, books)
    local set = rule_for(q, limiter)
    if set.wait > 0 then return set.wait, set.wait end
    local wait_of = set.rule.concurrency and wait_for_places or set.rule.window and wait_for_window or wait_for_tokens
    return wait_of(q, limiter, set.rule, spent, who, books)
  end

  -- Has a limiter stand among those that are listed.
  local function note_id(q, limiter)
    local ids = q.prefix .. 'limiters'
    if redis.call('ZADD', ids, text(time_ms()), limiter.id .. '\0' .. limiter.words) == 1 then redis.call('ZREMRANGEBYRANK', ids, 0, -1 - MOST_IDS) end
  end

  -- Takes what `wait_for` has found room for; `taker` is who has it: of a message its tag, NUL and its queue.
  local function take(q, limiter, taker, who, is_new, tokens, booking)
    local rule, now = rule_for(q, limiter).rule, time_ms()
    if rule.concurrency then
      redis.call('ZADD', key_of(q, 'limiter_places', limiter), string.format('%.3f', now), taker)
      fresh[taker] = true
    elseif rule.window then
      local key, at = key_of(q, 'limiter_window', limiter), string.format('%.3f', now)
      redis.call('ZADD', key, at, taker .. '\0' .. at)
      redis.call('PEXPIRE', key, text(rule.span + KEPT_MS))
    else
      if booking and booking.who == who and booking.cost > 0 then booking = { cost = 0, till = now + limiter.cost / rule.rate, who = who } end
      put_tokens(key_of(q, 'limiter_bucket', limiter), rule, tokens - limiter.cost, now, booking)
    end
    if is_new then note_id(q, limiter) end
  end

  -- How much there is free.
  local function free_of(q, limiter)
    local rule = rule_for(q, limiter).rule
    if rule.concurrency then return rule.concurrency - redis.call('ZCARD', key_of(q, 'limiter_places', limiter)) end
    local now = time_ms()
    if not rule.window then return (tokens_in(key_of(q, 'limiter_bucket', limiter), rule, now)) end
    return rule.number - redis.call('ZCOUNT', key_of(q, 'limiter_window', limiter), string.format('(%.3f', now - rule.span), '+inf')
  end

  local function member_of(id, place, tag) return id .. '\0' .. string.format('%016.0f', place) .. tag end

  -- The member of the message that waits first for a limiter, its place and its tag; nil without one.
  local function next_waiting(q, id)
    local member = redis.call('ZRANGE', q.limited, '[' .. id .. '\0', '(' .. id .. '\1', 'BYLEX', 'LIMIT', 0, 1)[1]
    if member then return member, tonumber(string.sub(member, #id + 2, #id + 17)), string.sub(member, #id + 18) end
  end

  -- Has the sweep look at a limiter of the queue in `wait` ms, or before.
  local function look_in(q, id, wait)
    local now = now_ms()
    local due = now + math.max(1, math.ceil(wait))
    if redis.call('ZADD', q.untils, 'LT', 'CH', text(due), id) == 0 then return end
    local record = redis.call('HMGET', q.meta, 'next', 'limiters', 'ttl')
    redis.call('ZADD', q.prefix .. 'limiter_queues', 0, id .. '\0' .. q.rest)
    if not record[2] then redis.call('HSET', q.meta, 'limiters', 1) end
    local next_sweep = tonumber(record[1]) or 0
    if next_sweep < now or due < next_sweep then redis.call('ZADD', q.prefix .. 'schedule_wakeup:' .. q.rest, 0, 'due') end
    q.ttl = record[3]
  end

  -- Whether a message that a claim has come by may go to its consumer: it has what it needs of its limiter then. Else it stands among those
  -- that wait; the caller takes it out of the queue, and calls `settle` behind that.
  local function takes(meta, tag, score, said)
    local limiter, q = read(said), queue_of(meta)
    if not limiter then return true end
    local id, place, first = limiter.id, tonumber(score), q.first[limiter.id]
    if first == nil then
      local _, waits, other = next_waiting(q, id)
      first = waits and { waits, other } or false
      q.first[id] = first
    end
    -- Who waits already and was first goes first.
    local behind = first and (first[1] < place or (first[1] == place and first[2] < tag))
    local wait, worth, is_new, tokens, booking = wait_for(q, limiter, 0, q.rest, not behind and math.huge)
    if not behind and wait == 0 then
      take(q, limiter, tag .. '\0' .. q.rest, q.rest, is_new, tokens, booking)
      return true
    end
    -- It may be held since before its first message.
    if not first then note_id(q, limiter) end
    look_in(q, id, worth)
    redis.call('ZADD', q.limited, 0, member_of(id, place, tag))
    redis.call('ZADD', q.held, text(place), tag)
    if q.ttl then
      for _, key in ipairs({ q.held, q.limited, q.untils }) do redis.pcall('PEXPIRE', key, q.ttl, 'NX') end
    end
    -- Where a script failed that has made it ready.
    redis.call('HDEL', q.message .. tag, 'score', 'delay', 'owner')
    if not behind then q.first[id] = { place, tag } end
    if wait == 0 then q.to_admit[id] = true end
    q.refused[#q.refused + 1] = tag
    return false
  end

  -- The fields of a message that waits for its limiter at a place; false where it does not: a script that failed may have left it there.
  local function waiting(q, tag, place)
    local fields = redis.pcall('HMGET', q.message .. tag, 'limiter', 'owner', 'died', 'group')
    if fields.err or not fields[1] or fields[2] or fields[3] or tonumber(redis.call('ZSCORE', q.held, tag) or -1) ~= place then
      return false
    end
    return not redis.call('ZSCORE', q.ready, tag) and not redis.call('ZSCORE', q.delayed, tag) and fields
  end

  -- Makes messages ready that their limiter has room for, the first ones first. A claim asks it again. Returns how many.
  local function admit(meta, id)
    local q, spent, admitted, look = queue_of(meta), 0, 0, nil
    for _ = 1, MOST_ADMITTED do
      local member, place, tag = next_waiting(q, id)
      look = member and 1
      if not member then break end
      local fields = waiting(q, tag, place)
      local limiter = fields and read(fields[1])
      if limiter then
        -- A queue without consumers, or that is paused, keeps no tokens from others.
        local asks = spent == 0 and redis.call('EXISTS', q.prefix .. 'consumers:' .. q.rest) == 1 and not redis.call('HGET', meta, 'paused')
        local wait, worth = wait_for(q, limiter, spent, q.rest, asks and math.huge)
        if wait > 0 then
          look = worth
          break
        end
        spent = spent + limiter.cost
      end
      -- Its group may hold it now.
      local held = limiter and fields[4] and groups().enter(meta, tag, { group = fields[4] }, place, false)
      if fields and not (limiter and fields[4]) then redis.call('ZADD', q.ready, text(place), tag) end
      if fields and not held then
        redis.call('ZREM', q.held, tag)
        admitted = admitted + 1
      end
      redis.call('ZREM', q.limited, member)
    end
    if look then
      redis.call('ZADD', q.untils, text(now_ms() + math.ceil(look)), id)
    else
      redis.call('ZREM', q.untils, id)
      redis.call('ZREM', q.prefix .. 'limiter_queues', id .. '\0' .. q.rest)
    end
    q.first[id] = nil
    if admitted > 0 then
      local record = redis.call('HMGET', meta, 'wakeup', 'quiet')
      if not record[2] then redis.call('ZADD', record[1] or q.prefix .. 'wakeup:' .. q.rest, 0, 'work') end
    end
    return admitted
  end

  -- After a claim: messages that it has refused are out of the queue by now. Returns how many are ready in their place.
  local function settle(meta)
    local q, admitted = queue_of(meta), 0
    for _, tag in ipairs(q.refused) do admitted = admitted + groups().give_place(meta, tag) end
    for id in pairs(q.to_admit) do admitted = admitted + admit(meta, id) end
    q.refused, q.to_admit = {}, {}
    return admitted
  end

  -- Admits messages of a limiter in the queues that hold some, those behind this one first.
  local function admit_everywhere(q, id)
    local all, own = q.prefix .. 'limiter_queues', id .. '\0' .. (q.rest or '')
    local found = redis.call('ZRANGE', all, '(' .. own, '(' .. id .. '\1', 'BYLEX', 'LIMIT', 0, MOST_QUEUES)
    if #found < MOST_QUEUES then
      for _, member in ipairs(redis.call('ZRANGE', all, '[' .. id .. '\0', '[' .. own, 'BYLEX', 'LIMIT', 0, MOST_QUEUES - #found)) do
        found[#found + 1] = member
      end
    end
    for _, member in ipairs(found) do admit(q.prefix .. 'meta:' .. string.sub(member, #id + 2), id) end
  end

  -- A message is in work no more: where its limiter counts what is in work, another one may go on.
  local function give_back(meta, tag, said)
    local limiter, q = read(said), queue_of(meta)
    if not limiter then return end
    if limiter.rule.concurrency then
      if redis.call('ZREM', key_of(q, 'limiter_places', limiter), tag .. '\0' .. q.rest) > 0 then admit_everywhere(q, limiter.id) end
      return
    end
    -- Where the process died that sweeps the queue, another one does so when its lease has ended: those that work go on meanwhile.
    local due = redis.call('ZRANGEBYSCORE', q.untils, '-inf', text(now_ms()), 'LIMIT', 0, 1)[1]
    if due then admit(meta, due) end
  end

  -- Takes a message out of those that wait; `place` is its score in `held`.
  local function forget(meta, tag, said, place)
    local limiter, q = read(said), queue_of(meta)
    if limiter and place then redis.call('ZREM', q.limited, member_of(limiter.id, tonumber(place), tag)) end
  end

  -- Whether a message stands among those that wait for their limiter.
  local function holds(meta, tag)
    local q = queue_of(meta)
    local said, place = redis.pcall('HGET', q.message .. tag, 'limiter'), redis.call('ZSCORE', q.held, tag)
    local limiter = place and type(said) == 'string' and read(said)
    return limiter and redis.call('ZSCORE', q.limited, member_of(limiter.id, tonumber(place), tag)) and limiter
  end

  _limiter_functions = {
    holds = holds, free_of = free_of,
    takes = takes, settle = settle, admit = admit, give_back = give_back, forget = forget, queue_of = queue_of, read = read,
    next_waiting = next_waiting, waiting = waiting, member_of = member_of, wait_for = wait_for, take = take, key_of = key_of,
    admit_everywhere = admit_everywhere, rule_of = rule_of,
  }
  return _limiter_functions
end
