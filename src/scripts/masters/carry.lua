-- Raises fencing counters to those of the old masters (docs/protocol.md, "Replacing masters"). Never lowers a counter.
-- Does not raise the counter of a lock that an owner holds, because all holds of an owner share one number.
-- KEYS: counters. ARGV: the minimum expiry of a counter in ms, and the number for each counter.
-- Reply, for each counter: 1 (raised), 0 (already high enough), or the marker of the owner that holds the lock.
local call, said, FENCE_TTL = redis.call, {}, ARGV[1]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
for i, key in ipairs(KEYS) do
  local counter, v = tonumber(call('GET', key) or '0'), tonumber(ARGV[i + 1])
  local held = redis.pcall('GET', string.sub(key, string.len('{fence}') + 1))
  if type(held) == 'table' and held.err and not string.find(held.err, 'WRONGTYPE', 1, true) then
    -- The user lacks the right to read the lock key. An owner may hold the lock, so do not raise its counter.
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
