-- ACQUIRE in order (protocol, sections 2 and 6). As acquire.lua, but only for who is first in line.
-- KEYS: lock, fence counter, queue, alive, ticket.
-- ARGV: value, ttl ms, proposal us, and of a queued waiter its id, ticket and heartbeat ms
-- (an empty id is a try: it takes no place).
-- Reply: the counter (granted), or
-- {ms until it may be free, waiters ahead, largest ticket, holder's value or ''}.
if tonumber(ARGV[2]) > MAX_TTL then
  return redis.error_reply('ERR quorate: ttl above max_ttl')
end
local waiter = ARGV[4]
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
if waiter ~= '' then
  local beat = tonumber(ARGV[6])
  redis.call('ZADD', KEYS[4], string.format('%.0f', ms + beat), waiter)
  if redis.call('ZADD', KEYS[3], ARGV[5], waiter) == 1 then
    -- New in line: the next to come draws a larger ticket.
    if tonumber(redis.call('GET', KEYS[5]) or 0) < tonumber(ARGV[5]) then
      redis.call('SET', KEYS[5], ARGV[5], 'KEEPTTL')
    end
  end
  for i = 3, 5 do
    if redis.call('PTTL', KEYS[i]) < beat then
      redis.call('PEXPIRE', KEYS[i], beat)
    end
  end
end
local head = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
if head and head ~= waiter then
  local dead = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', ms), 'LIMIT', 0, 1000)
  if #dead > 0 then
    redis.call('ZREM', KEYS[3], unpack(dead))
    redis.call('ZREM', KEYS[4], unpack(dead))
    head = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  end
end
local counter = tonumber(redis.call('GET', KEYS[2]) or 0)
if not head or head == waiter then
  if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    local now = time[1] * 1000000 + time[2]
    local v = math.min(math.max(tonumber(ARGV[3]), now - 1000000), now + 1000000)
    if v <= counter then v = counter + 1 end
    redis.call('SET', KEYS[2], string.format('%.0f', v), 'PX', FENCE_TTL)
    return v
  end
end
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
  return counter
end
local left
if held then
  left = redis.call('PTTL', KEYS[1])
else
  left = tonumber(redis.call('ZSCORE', KEYS[4], head) or ms) - ms
end
local ahead
if waiter ~= '' then
  ahead = redis.call('ZRANK', KEYS[3], waiter)
else
  ahead = redis.call('ZCARD', KEYS[3])
end
return {left, ahead, tonumber(redis.call('GET', KEYS[5]) or 0), held or ''}
