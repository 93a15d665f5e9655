-- LOOK: the lock as it stands. KEYS: lock, fence counter, queue, alive, note (for BREAK).
-- Reply: {value or nil, ttl left ms, counter or nil, waiters in order, ms each lives on}.
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local line = redis.call('ZRANGE', KEYS[3], 0, 99)
local lives = {}
for i, waiter in ipairs(line) do
  lives[i] = tonumber(redis.call('ZSCORE', KEYS[4], waiter) or ms) - ms
end
return {
  redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[2]), line, lives
}
