-- Raises fencing counters to those of the masters before, and never lowers one (protocol, masters that change). Where an owner
-- holds the lock, a counter is raised by nobody: a further hold of that owner would have a larger number than its first.
-- KEYS: counters. ARGV: how long they live, in ms, and the number of each.
-- Reply: of each 1 (raised), 0 (it was high enough), or the marker of an owner under which it is not above that number.
local said = {}
for i, key in ipairs(KEYS) do
  local counter, number = tonumber(redis.call('GET', key) or '0'), tonumber(ARGV[i + 1])
  local held = redis.pcall('GET', string.sub(key, string.len('{fence}') + 1))
  local owned = type(held) == 'string' and string.sub(held, 1, string.len('{owner}')) == '{owner}'
  said[i] = 0
  if owned and counter <= number then
    said[i] = held
  elseif counter < number then
    redis.call('SET', key, ARGV[i + 1], 'PX', ARGV[1])
    said[i] = 1
  end
end
return said
