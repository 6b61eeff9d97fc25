-- A place in a zset as text, 'score/member', with which a walk by pages goes on: it counts whether its member is still there or not.

-- Whether member `a` stands behind `b` where both have one score: Redis orders members by their bytes, Lua's `>` by the locale.
local function stands_behind(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- The rank of the first entry behind a place; 0 for '', the beginning. Some 20 looks where many entries have one score, else three.
local function rank_behind(key, place)
  local score, member = string.match(place, '^([^/]*)/(.*)$')
  if not score then return 0 end
  local first, past = redis.call('ZCOUNT', key, '-inf', '(' .. score), redis.call('ZCOUNT', key, '-inf', score)
  while first < past do
    local middle = math.floor((first + past) / 2)
    if stands_behind(redis.call('ZRANGE', key, middle, middle)[1], member) then past = middle else first = middle + 1 end
  end
  return first
end

-- Returns up to `count` pairs of member and score behind a place, and the place where the page ends: '' where nothing follows.
local function page_behind(key, place, count)
  local first = rank_behind(key, place)
  local page = redis.call('ZRANGE', key, first, first + count - 1, 'WITHSCORES')
  return page, #page == 2 * count and page[#page] .. '/' .. page[#page - 1] or ''
end
