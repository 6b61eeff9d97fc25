-- @include now
-- @include ready
-- @include lifetime
-- @include room
-- @include event

-- Rings the timer for a sweeper that does not know of what is due at `due`: a `next` in the past belongs to one that is gone.
local function announce(timer, ttl, next_due, due, now)
  next_due = tonumber(next_due or 0)
  if next_due >= now and due >= next_due then return end
  redis.call('ZADD', timer, 0, 'due')
  if ttl then redis.call('PEXPIRE', timer, ttl) end
end

-- Gives the message its tag and its place: ready, or delayed until `eta` (ms since the epoch; '+ms' counts from now). Returns
-- the tag.
-- `record` is HMGET meta id ttl next message_ttl limited archive; `record.description` is what the event `published` says of the
-- message. `staged` is false, or the key of a hash that already holds the body.
-- `life` is as publishers send it. `tag` is false, or a tag that the message has already: its event is left to the caller.
local function enqueue(meta, ready, delayed, message, bell, timer, record, payload, rank, eta, staged, expiry, life, tag)
  local now = now_ms()
  eta = string.sub(eta, 1, 1) == '+' and now + tonumber(eta) or tonumber(eta)
  local published = redis.call('HINCRBY', meta, 'published', 1)
  local told = not tag and record[6] and is_sampled(log_of(meta, record[6]), published)
  tag = tag or new_tag(now, published, mark_of(record[5], told), record[1])
  local hash = message .. tag
  if staged then
    redis.call('RENAME', staged, hash)
    redis.call('PERSIST', hash)
  end
  local ttl = record[2]
  local lives, expires = false, false
  if life ~= '' or record[4] then lives, expires = lifetime(life, record[4]) end
  if eta > now then
    redis.call('HSET', hash, 'payload', payload, 'score', text(rank * LEVEL + eta))
    if lives then redis.call('HSET', hash, 'lives', text(lives)) end
    if expires then redis.call('HSET', hash, 'expires', text(expires)) end
    redis.call('ZADD', delayed, text(eta), tag)
    if ttl then redis.call('PEXPIRE', delayed, ttl) end
    announce(timer, ttl, record[3], eta, now)
  else
    make_ready(ready, bell, hash, tag, payload, rank, now)
    expires = expiry_of(lives, expires, now)
    if expires then
      redis.call('HSET', hash, 'expires', text(expires))
      redis.call('ZADD', expiry, text(expires), tag)
      if ttl then redis.call('PEXPIRE', expiry, ttl) end
      announce(timer, ttl, record[3], expires, now)
    end
    if ttl then
      redis.call('PEXPIRE', ready, ttl)
      redis.call('PEXPIRE', bell, ttl)
    end
  end
  if ttl then redis.call('PEXPIRE', hash, ttl) end
  if record[5] and limits_bytes(record[5]) then redis.call('HINCRBY', meta, 'bytes', size_of(hash)) end
  if told then tell_published(meta, tag, record.description, payload, eta - now) end
  return tag
end
