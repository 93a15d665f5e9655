-- ACQUIRE (docs/protocol.md, "Majority"): takes the lock if it is free, and raises its fencing counter.
-- KEYS: lock. ARGV: value, ttl ms, proposed counter in microseconds.
-- Reply: the counter if the lock was granted, otherwise {ttl left ms, counter}.
-- When the script is loaded, a line in front of it defines MAX_TTL and FENCE_TTL, both in ms.
if tonumber(ARGV[2]) > MAX_TTL then
  return redis.error_reply('ERR quorate: ttl above max_ttl')
end
local call, key = redis.call, KEYS[1]
--+ fence/read.lua
if call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) then
  local time = call('TIME')
  --+ fence/raise.lua
end
if call('GET', key) == ARGV[1] then
  --+ fence/again.lua
end
return {call('PTTL', key), counter}
