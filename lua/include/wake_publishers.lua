-- @include slowest_subscriber
-- @include waiting_publishers
-- @include limits

-- Wakes publishers that wait for subscribers of an exchange with limits, as many as there is room for.
local function wake_publishers(stream, fanout, subscribers, cursors, records, waiting_publishers, now)
  local limited = redis.call('HGET', fanout, 'limited')
  local max_pending = limited and limited ~= '' and select(3, read_limits(limited))
  local _, processed = slowest_subscriber(cursors, subscribers, records, now)
  local pending = processed and unread(stream, broadcasts_so_far(fanout), processed) or 0
  notify_publishers(waiting_publishers, max_pending and max_pending - pending or 100, now)
end
