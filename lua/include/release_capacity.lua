-- @include tag_flags
-- @include waiting_publishers
-- @include limits

-- A tag has this character in place of the dot before its queue's id where the queue has limits: a script that settles or claims a
-- message sees from its tag alone whether publishers may wait for the room that it leaves. Others pay nothing.
local function is_bounded(tag)
  local flag = string.byte(tag, 20)
  return flag == 126 or flag == 61 or flag == 64 or flag == 43
end

-- Bytes that a message counts for.
local function size_of(hash)
  local payload, body = redis.pcall('HSTRLEN', hash, 'payload'), redis.pcall('HSTRLEN', hash, 'body')
  -- A key of another type has no fields.
  return type(payload) == 'number' and type(body) == 'number' and payload + body or 0
end

-- Notes what became of `count` messages of a queue with limits: they were 'claimed', and still count as pending; were 'settled';
-- or have 'gone' unclaimed. `bytes` is what they counted for, where they count no more. Wakes as many publishers if one of the
-- limits has given way.
local function release_capacity(meta, count, bytes, how, now)
  if count < 1 then return end
  local record = redis.call('HMGET', meta, 'limited', 'waiting_publishers')
  if not record[1] then return end
  local max_length, max_bytes, max_pending = read_limits(record[1])
  if max_bytes and bytes > 0 then redis.call('HINCRBY', meta, 'bytes', -bytes) end
  if (max_length and how ~= 'settled') or ((max_bytes or max_pending) and how ~= 'claimed') then
    notify_publishers(record[2], count, now)
  end
end
