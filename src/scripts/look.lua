-- LOOK: reads the state of a lock.
-- KEYS: lock. ARGV: the name of its queue if that is not the lock key (a slot uses its semaphore's queue).
-- Reply: {first 96 bytes of the value or nil, ttl left ms, counter or nil, the waiters in order, ms until each waiter's
-- place expires, note}. The note is left out if it does not exist or is not readable. If readers or an owner share the
-- lock, a flat list takes its place: value, ms left, and note or '' of each hold.
local name = ARGV[1] or KEYS[1]
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local line = redis.call('ZRANGE', '{queue}' .. name, 0, 99)
local lives = {}
for i, waiter in ipairs(line) do
  lives[i] = tonumber(redis.call('ZSCORE', '{alive}' .. name, waiter) or ms) - ms
end
local held = redis.call('GET', KEYS[1])
--+ note/said.lua
return {
  held and string.sub(held, 1, 96),
  redis.call('PTTL', KEYS[1]),
  redis.call('GET', '{fence}' .. KEYS[1]),
  line,
  lives,
  said
}
