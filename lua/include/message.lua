-- Reads fields of a message's hash. A key of another type (a foreign key, a wrong restore) holds no message: it counts as
-- vanished, so that it stops neither its queue nor its neighbours. Any other error goes up: it says nothing about the message.
local function fields_of(hash, ...)
  local fields = redis.pcall('HMGET', hash, ...)
  if not fields.err then return fields end
  if string.find(fields.err, 'WRONGTYPE', 1, true) then return {} end
  return error(fields)
end

local function is_there(hash)
  return redis.call('TYPE', hash).ok == 'hash'
end
