-- READ (docs/protocol.md, "Values under a lock"): returns the stored value, and sets the fencing counter as CONFIRM
-- does. From then on, this master refuses writes with a smaller fencing number.
-- KEYS: lock. ARGV: value of the lock key, token.
-- Reply, one of these:
-- - {the stored value, or nil; this master's time in us}: the counter equals the token now.
-- - 0: the lock is not ours.
-- - a number above the token: the largest fencing number on this master. The counter equals this number now.
local call, key = redis.call, KEYS[1]
--+ value/read.lua
if call('GET', key) ~= ARGV[1] then
  return 0
end
--+ fence/read.lua
local v = math.max(counter, number, tonumber(ARGV[2]))
local above = v > tonumber(ARGV[2])
if above and number <= counter then
  return v
end
-- The stored value's fencing number can be above the token and the counter, if the clock of the value's writer was
-- ahead. Set the counter to the largest of the three, so that the next holder gets a larger number.
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
--+ fence/lives.lua
call('SET', fence, above and string.format('%.0f', v) or ARGV[2], 'PX', fence_lives)
return above and v or {text, now}
