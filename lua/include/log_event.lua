-- @include now
-- @include text
-- @include tag_flags

-- KEYS of its own  events (stream)  events_meta (hash)  events_readers (hash)  event_index (prefix of a string)
-- Lifecycle events: what an entry holds stands in celery_redis_plus/events.py. A script that changes a message's state logs
-- it in the same step. Whether a message's events are written is decided once, when it is published, and stands in its tag: so
-- each message is logged as a whole, and the others cost one comparison.

local NO_DESCRIPTION = '\t\t\t\t\t\t\t\t\t\t'
-- Milliseconds between two looks at the server's memory and identity, which cost 30 µs.
local CHECK_INTERVAL_MS = 100
-- How far an epoch is ahead of the clock: an entry that somebody else adds with the id `*` gets the next number of the epoch, and readers
-- pass over it. Its id would else be beyond the epoch, and no event could follow.
local EPOCH_AHEAD_MS = 1e13

local function is_logged(tag)
  local flag = string.byte(tag, 20)
  return flag == 45 or flag == 61 or flag == 95 or flag == 43
end

-- Notes the last number of an epoch, which is over; `epoch` is false where nothing tells what it was. Returns whether it was there.
local function end_epoch(log, epoch)
  local info = redis.pcall('XINFO', 'STREAM', log.events)
  for i = 1, #info, 2 do
    local top, last = string.match(tostring(info[i + 1]), '^(%d+)%-(%d+)$')
    if info[i] == 'last-generated-id' and top == (epoch or top) then
      local ended = redis.call('HGET', log.meta, 'ended') or ''
      if not string.find(' ' .. ended, ' ' .. top .. ':', 1, true) then
        redis.call('HSET', log.meta, 'ended', ended .. top .. ':' .. last .. ' ')
      end
      log.least_epoch = top + 1
      return true
    end
  end
  return false
end

-- Notes how events are written, for readers, who may not read the queue's record.
-- Whether memory is full is known to INFO only: these scripts may go on then, and what acks free must not fill up with events.
-- Another `run_id` is a server that was restarted, or another primary: its numbers may be behind those that readers have seen.
local function check_server(log, state, now)
  local info = redis.pcall('INFO', 'memory', 'server')
  local full, run = '0', state[4]
  if type(info) == 'string' then
    local most = tonumber(string.match(info, '\nmaxmemory:(%d+)'))
    local used = string.match(info, '\nused_memory:(%d+)') - (string.match(info, 'mem_not_counted_for_evict:(%d+)') or 0)
    full = most > 0 and used >= most and '1' or '0'
    run = string.match(info, '\nrun_id:(%x+)')
  end
  redis.call('HSET', log.meta, 'full', full, 'permille', log.permille, 'payload', log.payload and '1' or '0')
  if log.epoch and state[4] and run and run ~= state[4] then
    -- The next event ends the epoch: a call that writes none would leave it ended, and in use. Until then each call looks.
    log.other_run = run
  else
    redis.call('HSET', log.meta, 'checked', text(now))
    if run then redis.call('HSET', log.meta, 'run', run) end
  end
  log.full = full == '1'
end

-- The fields of the record that are read here, by their types.
local LOG_FIELDS = {
  permille = 'number', maxlen = 'number', hard_maxlen = 'number', age = 'number', chosen = 'string', events = 'string', meta = 'string',
  readers = 'string', event_index = 'string', task_index = 'string',
}

local function is_log(log)
  if type(log) ~= 'table' then return false end
  for name, kind in pairs(LOG_FIELDS) do
    local value = log[name]
    if type(value) ~= kind or (kind == 'number' and not (value >= 0 and value < 1e15)) then return false end
  end
  return true
end

local function count_skipped(log)
  local counted = redis.pcall('HINCRBY', log.meta, 'skipped', 1)
  -- Somebody else wrote there.
  if type(counted) == 'table' then redis.pcall('HSET', log.meta, 'skipped', 1, 'skipped_logged', 0) end
end

local _logs = {}
-- Why the log of a queue cannot be written, by the key of its record.
local _log_failures = {}

-- The queue's log by the key of its record, opened once a script call; false where its events are not written. `event_log` is the
-- record's field, written by event_log/settings.py, where the caller has read it.
local function log_of(meta, event_log)
  if _logs[meta] ~= nil then return _logs[meta] end
  _logs[meta] = false
  if event_log == nil then event_log = redis.call('HGET', meta, 'event_log') end
  if not event_log then return false end
  local readable, log = pcall(cjson.decode, event_log)
  -- One that somebody else wrote holds up no message; the next declaration writes it anew.
  if not (readable and is_log(log)) then
    _log_failures[meta] = 'field event_log of its record is none that was written here: no events are written until it is declared again'
    return false
  end
  local state = redis.pcall('HMGET', log.meta, 'epoch', 'checked', 'full', 'run')
  if state.err then
    _log_failures[meta] = state.err
    return false
  end
  local now, ts = now_ms_and_us()
  log.ts, log.epoch, log.now, log.full = ts, state[1], now, state[3] == '1'
  if log.epoch and not (#log.epoch < 16 and string.find(log.epoch, '^[1-9]%d*$')) then
    end_epoch(log, false)
    log.epoch = false
  end
  if math.abs(now - (tonumber(state[2]) or 0)) >= CHECK_INTERVAL_MS then check_server(log, state, now) end
  _logs[meta] = log
  return log
end

-- Writes the event `what` of a message whose tag says so; `meta` is the key of its queue's record. `facts` has some of: claim,
-- worker, reason, error, delay, target, description, payload; worker and error are packed by Python.
local function log_event(meta, tag, what, facts)
  if not is_logged(tag) then return end
  local log = log_of(meta)
  if not log or (log.chosen ~= '*' and not string.find(log.chosen, ',' .. what .. ',', 1, true)) then return end
  if log.full then return count_skipped(log) end
  local value = what .. '\t' .. log.ts .. '\t' .. tag .. '\t' .. (facts.claim or '') .. '\t' .. (facts.worker or '') .. '\t'
    .. (facts.reason or '') .. '\t' .. (facts.error or '') .. '\t' .. (facts.delay or '') .. '\t' .. (facts.target or '') .. '\t'
    .. (facts.description or NO_DESCRIPTION)
  if log.other_run then
    if end_epoch(log, log.epoch) then log.epoch = false end
    redis.call('HSET', log.meta, 'run', log.other_run, 'checked', text(log.now))
    log.other_run = nil
  end
  local id = log.epoch and log.epoch .. '-*'
  if not id then
    -- Redis would begin an epoch at 0.
    log.epoch = text(math.max(log.now + EPOCH_AHEAD_MS, log.least_epoch or 0))
    redis.call('HSET', log.meta, 'epoch', log.epoch, 'version', 1)
    -- They had an end where the queue was deleted before.
    redis.call('PERSIST', log.meta)
    redis.call('PERSIST', log.readers)
    id = log.epoch .. '-1'
  end
  if facts.payload and log.payload then
    id = redis.pcall('XADD', log.events, id, 'v', value, 'p', facts.payload)
  else
    id = redis.pcall('XADD', log.events, id, 'v', value)
  end
  -- An event that cannot be written (a key of another type) holds up no message.
  if type(id) == 'table' then
    count_skipped(log)
  elseif log.index then
    redis.pcall('APPEND', log.event_index .. tag, id .. ' ')
    redis.pcall('PEXPIRE', log.event_index .. tag, log.age)
  end
end

-- The exception of a message's last failed try, as its events name it: the first of the two columns of the field `error`.
local function error_of(hash, tag)
  return is_logged(tag) and string.match(redis.call('HGET', hash, 'error') or '', '^[^\t]+') or nil
end

-- Writes `published`, and `delayed` where the message waits `delay` ms; lets its task id be looked up.
local function log_published(meta, tag, description, payload, delay)
  log_event(meta, tag, 'published', { description = description, payload = payload })
  if delay > 0 then log_event(meta, tag, 'delayed', { delay = text(delay) }) end
  local log = is_logged(tag) and log_of(meta)
  local task_id = log and log.index and not log.full and description and string.match(description, '^[^\t]+')
  if task_id then
    redis.pcall('APPEND', log.task_index .. task_id, tag .. ' ')
    redis.pcall('PEXPIRE', log.task_index .. task_id, log.age)
  end
end
