-- STATUS: reads the state of a lock.
-- KEYS: lock. ARGV: the name of its queue if that is not the lock key (a slot uses its semaphore's queue).
-- Reply, a list:
-- - the first 96 bytes of the value, or nil
-- - the remaining ttl in ms
-- - the counter, or nil
-- - the waiters in order
-- - for each waiter, the ms until its place expires
-- - the holder's note, if it exists and is readable; or, if readers or an owner share the lock, a flat list with the
--   value, the remaining ms, and the note or '' of each hold
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
