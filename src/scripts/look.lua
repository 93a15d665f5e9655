-- LOOK: the lock as it stands. KEYS: lock.
-- Reply: {value or nil, ttl left ms, counter or nil, waiters in order, ms each lives on}, and the note
-- where there is one that may be read.
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local line = redis.call('ZRANGE', '{queue}' .. KEYS[1], 0, 99)
local lives = {}
for i, waiter in ipairs(line) do
  lives[i] = tonumber(redis.call('ZSCORE', '{alive}' .. KEYS[1], waiter) or ms) - ms
end
local note = redis.pcall('GET', '{note}' .. KEYS[1])
return {
  redis.call('GET', KEYS[1]),
  redis.call('PTTL', KEYS[1]),
  redis.call('GET', '{fence}' .. KEYS[1]),
  line,
  lives,
  type(note) == 'string' and note or nil
}
