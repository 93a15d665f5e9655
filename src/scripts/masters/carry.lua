-- Raises fencing counters to those of the masters before, and never lowers one (protocol, masters that change).
-- KEYS: counters. ARGV: how long one lives that is not ahead of the clock, in ms, and the number of each.
-- Reply: how many were raised.
local call, raised, FENCE_TTL = redis.call, 0, ARGV[1]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
for i, key in ipairs(KEYS) do
  local counter, v = tonumber(call('GET', key) or '0'), tonumber(ARGV[i + 1])
  if counter < v then
    --+ fence/lives.lua
    call('SET', key, ARGV[i + 1], 'PX', fence_lives)
    raised = raised + 1
  end
end
return said
