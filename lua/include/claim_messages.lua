-- @include now
-- @include text
-- @include tag_flags
-- @include expired_task

-- What a claim script sets first: who claims, for how long (ms), how many bytes of payload at most, and what events call him.
local holder, visibility, bytes, worker
-- Ready entries that a call looks at: those that it takes, and those that it passes, about 10 µs each.
local MOST_LOOKED_AT = 500
-- Characters of three whole numbers and what is between them: with more, one of them is none (include/damaged_message.lua).
local LONGEST_NUMBERS = 53
-- The first entry is the script's own; then come header, payload, header, payload, ...
local reply = { '' }
local now, deadline
-- The last entry of the reply whose message is out of its queue.
local taken_out = 1
-- How many of the messages that were taken are Celery tasks that have expired.
local expired_tasks = 0

local _for_flagged
-- The functions for messages of queues with limits or events, and for damaged ones, made when the first one is met: each call makes the functions anew
-- that it comes by, and these are many.
local function for_flagged()
  if not _for_flagged then
-- @include release_capacity
-- @include log_event
-- @include damaged_message
-- @include groups
    _for_flagged = {
      is_bounded = is_bounded, size_of = size_of, release_capacity = release_capacity, log_event = log_event, set_aside = set_aside,
      is_grouped = is_grouped, groups = groups, limiters = limiters,
    }
  end
  return _for_flagged
end

-- Takes up to `count` messages from the queue with these keys, which the reply calls `q`: into the index, then out of the queue.
-- A message that stands in both was taken by a claim that failed: no consumer has it, and the next claim takes it.
-- `chosen` is nil for the first ones, or a table of tags and scores. Returns how many it took, whether nothing is left there, and how
-- many left the queue.
local function claim_messages(q, count, ready, index, message, meta, expiry, delayed, chosen)
  -- One more than is wanted tells whether something is left.
  local found = chosen or redis.call('ZRANGE', ready, 0, count, 'WITHSCORES')
  local drained = #found <= 2 * count
  if #found > 0 and not deadline then
    now = now_ms()
    deadline = now + visibility
  end
  local at = #found > 0 and text(now)
  local claimed, expiring, of_groups, refused = {}, {}, false, false
  local taken, passed, to_sweep = 0, 0, false
  -- Once, and not for each header.
  q = tostring(q)
  for i = 1, math.min(#found, 2 * count), 2 do
    local tag, score = found[i], found[i + 1]
    if bytes <= 0 then
      -- The reply is full.
      drained = false
      break
    else
      passed = passed + 1
      local hash = message .. tag
      local fields = redis.pcall('HMGET', hash, 'payload', 'claim', 'expires', 'died', 'task_expiry', 'limiter')
      -- A key of another type is set aside as it is, and holds up no other.
      if fields.err then
        if not string.find(fields.err, 'WRONGTYPE', 1, true) then error(fields) end
        redis.call('HINCRBY', meta, 'damaged', 1)
        fields = {}
      end
      local expires, task_expiry = fields[3], fields[5]
      local expires_at = expires and tonumber(expires)
      -- What is no number is the sweep's matter, too.
      local overdue = expires and not (expires_at and expires_at > now)
      if expires then expiring[#expiring + 1] = tag end
      if fields[4] then
        -- A script failed that ended its life: the sweep finishes that.
        redis.call('ZADD', delayed, text(now), tag)
        to_sweep = true
      elseif overdue and not (task_expiry == 'ahead' and expires_at) then
        -- Only the sweep ends messages that expired, and tells their waiters. It finds this one among the delayed: due, and expired.
        redis.call('HSET', hash, 'score', score)
        redis.call('ZADD', delayed, text(now), tag)
        to_sweep = true
      elseif fields[1] then
        local claim, failed, seen, retried = '1', '0', '0', false
        -- Only a message that was claimed before can have failed, or been seen.
        if fields[2] then
          local past = redis.call('HMGET', hash, 'failed', 'seen', 'retried')
          failed, seen, retried = past[1] or '0', past[2] or '0', past[3]
          local numbers = fields[2] .. ' ' .. failed .. ' ' .. seen
          claim = #numbers <= LONGEST_NUMBERS and string.find(numbers, '^%-?%d+ %-?%d+ %-?%d+$') and text(fields[2] + 1)
        end
        if not claim then
          for_flagged().set_aside(meta, delayed, hash, tag, score, now)
          to_sweep = true
        elseif fields[6] and not (overdue or retried or task_expiry == 'over') and not for_flagged().limiters().takes(meta, tag, score, fields[6]) then
          -- Its limiter holds it; it expires all the same.
          refused = true
          if expires then expiring[#expiring] = nil end
        else
          redis.call('HSET', hash, 'score', score, 'claim', claim, 'owner', holder, 'claimed', at)
          claimed[#claimed + 1] = deadline
          claimed[#claimed + 1] = tag
          taken = taken + 1
          bytes = bytes - #fields[1]
          local header = q .. ' ' .. tag .. ' ' .. claim .. ' ' .. failed .. ' ' .. seen .. (retried and ' retried' or '')
          if overdue or task_expiry == 'over' then
            if overdue then mark_expired(meta, hash, now) end
            expired_tasks = expired_tasks + 1
            header = header .. ' expired'
          end
          reply[#reply + 1] = header
          reply[#reply + 1] = fields[1]
          if not is_plain(tag) then
            for_flagged().log_event(meta, tag, 'claimed', { claim = claim, worker = worker })
            if for_flagged().is_grouped(tag) then
              of_groups = of_groups or {}
              of_groups[#of_groups + 1] = tag
            end
          end
        end
      else
        redis.call('HINCRBY', meta, 'vanished', 1)
        if not is_plain(tag) then for_flagged().log_event(meta, tag, 'vanished', {}) end
      end
    end
  end
  if #claimed > 0 then redis.call('ZADD', index, unpack(claimed)) end
  if passed > 0 and chosen then
    for i = 1, 2 * passed, 2 do redis.call('ZREM', ready, chosen[i]) end
  elseif passed > 0 then
    redis.call('ZREMRANGEBYRANK', ready, 0, passed - 1)
  end
  taken_out = #reply
  if to_sweep then
    local ttl = redis.call('HGET', meta, 'ttl')
    if ttl then redis.call('PEXPIRE', delayed, ttl, 'NX') end
  end
  if #expiring > 0 then redis.call('ZREM', expiry, unpack(expiring)) end
  if taken > 0 then
    local delivered = redis.pcall('HINCRBY', meta, 'delivered', taken)
    if delivered == taken then
      -- A record that has just expired must not come back as a counter.
      if redis.call('HEXISTS', meta, 'id') == 0 then redis.call('DEL', meta) end
    elseif type(delivered) == 'table' then
      -- No number: it counts anew.
      redis.call('HSET', meta, 'delivered', taken)
    end
  end
  if passed > 0 and not is_plain(found[1]) and for_flagged().is_bounded(found[1]) then
    for_flagged().release_capacity(meta, passed, 0, 'claimed', now)
  end
  if refused and for_flagged().limiters().settle(meta) > 0 then drained = false end
  if of_groups and for_flagged().groups().claimed(meta, of_groups) > 0 then drained = false end
  return taken, drained, passed
end
