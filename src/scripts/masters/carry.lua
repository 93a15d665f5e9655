-- Raises fencing counters to those of the masters before, and never lowers one (protocol, masters that change).
-- KEYS: counters. ARGV: how long they live, in ms, and the number of each.
-- Reply: how many were raised.
local raised = 0
for i, key in ipairs(KEYS) do
  local counter = tonumber(redis.call('GET', key) or '0')
  if counter < tonumber(ARGV[i + 1]) then
    redis.call('SET', key, ARGV[i + 1], 'PX', ARGV[1])
    raised = raised + 1
  end
end
return raised
