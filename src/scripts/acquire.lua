-- ACQUIRE (protocol, section 2). One grant per free lock; the fencing counter moves with it.
-- KEYS: lock, fence counter. ARGV: value, ttl ms, proposal us.
-- MAX_TTL and FENCE_TTL, in ms, stand in front of this text when it is loaded.
-- Reply: the counter (granted), or {ttl left ms, counter} (held by another).
if tonumber(ARGV[2]) > MAX_TTL then
  return redis.error_reply('ERR quorate: ttl above max_ttl')
end
local counter = tonumber(redis.call('GET', KEYS[2]) or 0)
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local v = math.min(math.max(tonumber(ARGV[3]), now - 1000000), now + 1000000)
  if v <= counter then v = counter + 1 end
  redis.call('SET', KEYS[2], string.format('%.0f', v), 'PX', FENCE_TTL)
  return v
end
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return counter
end
return {redis.call('PTTL', KEYS[1]), counter}
