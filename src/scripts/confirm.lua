-- CONFIRM (protocol, section 2, step 3): the counter must be exactly the token afterwards.
-- KEYS: lock. ARGV: value, token.
-- Reply: 1 (confirmed), 0 (the lock is not ours), or the counter where it is above the token.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local counter = tonumber(redis.call('GET', 'quorate:fence:' .. KEYS[1]) or 0) or 0
if counter > tonumber(ARGV[2]) then
  return counter
end
redis.call('SET', 'quorate:fence:' .. KEYS[1], ARGV[2], 'PX', FENCE_TTL)
return 1
