-- CONFIRM (docs/protocol.md, "Fencing tokens"): sets the fencing counter to exactly the token, if the lock is ours.
-- KEYS: lock. ARGV: value, token.
-- Reply: 1 (confirmed), 0 (the lock is not ours), or the counter if it is above the token.
local call, key = redis.call, KEYS[1]
if call('GET', key) ~= ARGV[1] then
  return 0
end
--+ fence/read.lua
local v = tonumber(ARGV[2])
if counter > v then
  return counter
end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
--+ fence/lives.lua
call('SET', fence, ARGV[2], 'PX', fence_lives)
return 1
