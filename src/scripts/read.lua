-- READ of the value under a lock: as CONFIRM, and with the value. Afterwards no smaller number can write.
-- KEYS: lock. ARGV: value of the attempt, token.
-- Reply: {text or nil} (the counter stands at the token), 0 (the lock is not ours), or the largest number
-- here where it is above the token (the counter stands there then).
local call, key = redis.call, KEYS[1]
--+ value/read.lua
if call('GET', key) ~= ARGV[1] then
  return 0
end
--+ fence/read.lua
local above = math.max(counter, number)
if above > tonumber(ARGV[2]) then
  if number > counter then
    -- Written while a clock was ahead: the next holder's number is above it.
    call('SET', fence, string.format('%.0f', number), 'PX', FENCE_TTL)
  end
  return above
end
call('SET', fence, ARGV[2], 'PX', FENCE_TTL)
return {text}
