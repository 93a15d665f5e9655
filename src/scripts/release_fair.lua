-- RELEASE in order (protocol, sections 3 and 6): compare and delete, leave the line, and wake the
-- one that is next.
-- KEYS: lock, queue, alive. ARGV: value, waiter id or an empty text, 1 to leave the line.
-- Reply: 1 (deleted), 0 (it was not ours).
local mine = 0
if redis.call('GET', KEYS[1]) == ARGV[1] then
  mine = redis.call('DEL', KEYS[1])
end
local left = 0
if ARGV[3] == '1' then
  left = redis.call('ZREM', KEYS[2], ARGV[2])
  if left == 1 then
    redis.call('ZREM', KEYS[3], ARGV[2])
  end
end
if mine == 0 and left == 0 then
  return 0
end
local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
if not head or head == ARGV[2] then
  return mine
end
local time = redis.call('TIME')
local ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local dead = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ms, 'LIMIT', 0, 1000)
if #dead > 0 then
  redis.call('ZREM', KEYS[2], unpack(dead))
  redis.call('ZREM', KEYS[3], unpack(dead))
  head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
end
if head and (mine == 1 or redis.call('EXISTS', KEYS[1]) == 0) then
  -- A hint only; a user who may not publish still releases.
  redis.pcall('PUBLISH', 'quorate:wake:' .. string.sub(head, 1, 16), KEYS[1])
end
return mine
