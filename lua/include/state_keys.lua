-- How many keys of a queue a script gets that may move its messages to any of their places.
local STATE_KEYS = 11

-- The keys of one queue by name, the first of them being KEYS[base + 1]: QueueKeys.places in keys.py.
local function state_keys(base)
  return {
    ready = KEYS[base + 1], delayed = KEYS[base + 2], index = KEYS[base + 3], message = KEYS[base + 4],
    wakeup = KEYS[base + 5], meta = KEYS[base + 6], schedule_wakeup = KEYS[base + 7], expiry = KEYS[base + 8],
    dlx_outbox = KEYS[base + 9], dead = KEYS[base + 10], trash = KEYS[base + 11],
  }
end
