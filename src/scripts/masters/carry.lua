-- Raises fencing counters to those of the masters before, and never lowers one (protocol, masters that change). Where an owner
-- holds the lock, a counter is raised by nobody: a further hold of that owner would have a larger number than its first.
-- KEYS: counters. ARGV: how long one lives that is not ahead of the clock, in ms, and the number of each.
-- Reply: of each 1 (raised), 0 (it was high enough), or the marker of an owner under which it is not above that number.
local call, said, FENCE_TTL = redis.call, {}, ARGV[1]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
for i, key in ipairs(KEYS) do
  local counter, v = tonumber(call('GET', key) or '0'), tonumber(ARGV[i + 1])
  local held = redis.pcall('GET', string.sub(key, string.len('{fence}') + 1))
  if type(held) == 'table' and held.err and not string.find(held.err, 'WRONGTYPE', 1, true) then
    -- A lock that this user may not read may be an owner's.
    return held
  end
  local owned = type(held) == 'string' and string.sub(held, 1, string.len('{owner}')) == '{owner}'
  said[i] = 0
  if owned and counter <= v then
    said[i] = held
  elseif counter < v then
    --+ fence/lives.lua
    call('SET', key, ARGV[i + 1], 'PX', fence_lives)
    said[i] = 1
  end
end
return said
