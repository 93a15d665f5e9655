-- ACQUIRE (docs/protocol.md, "Majority"). Grants a free lock once, and raises its fencing counter.
-- KEYS: lock. ARGV: value, ttl ms, proposed counter in microseconds.
-- MAX_TTL and FENCE_TTL, in ms, are set in front of this text when the script is loaded.
-- Reply: the counter (granted), or {ttl left ms, counter} (another client holds the lock).
-- Each redis.call costs time here (docs/benchmarks.md). So the script builds the other key names itself instead of
-- receiving them. It formats the counter only if the counter differs from the proposed counter.
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
