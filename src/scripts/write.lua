-- WRITE (docs/protocol.md, "Values under a lock"): stores a value, unless this master has seen a larger fencing number
-- than the token. The script checks neither a clock nor the lock key. The value never expires.
-- KEYS: lock. ARGV: token, run id of this server, bytes; without bytes the value is removed.
-- Reply: 1 (written), or the largest fencing number on this master if it is above the token.
local call, key = redis.call, KEYS[1]
--+ value/read.lua
--+ fence/read.lua
local above = math.max(counter, number)
if above > tonumber(ARGV[1]) then
  return above
end
if ARGV[3] then
  call('SET', value, ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
else
  call('DEL', value)
  -- The value's fencing number was deleted with the value. Raise the counter to this holder's token instead, so that
  -- this master still refuses writes with smaller tokens.
  local v, time = tonumber(ARGV[1]), call('TIME')
  local now = time[1] * 1000000 + time[2]
  --+ fence/lives.lua
  call('SET', fence, ARGV[1], 'PX', fence_lives)
end
return 1
