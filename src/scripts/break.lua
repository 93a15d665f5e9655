-- BREAK: an operator's last resort. Deletes the lock whoever holds it, and wakes who is next. The
-- fence counter stays, and so does a note for as long as the holder could still renew: without it
-- the holder's next renewal would put the key back. A value of another type is never touched, for
-- GET fails first.
-- KEYS: lock. ARGV as LOOK. Reply as LOOK without the line, from before; the note goes with the lock.
local held = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
--+ note/said.lua
local was = {held and string.sub(held, 1, 96), left, redis.call('GET', '{fence}' .. KEYS[1]), said}
if held then
  if left > 0 then
    redis.call('SET', '{broken}' .. KEYS[1], held, 'PX', left)
  end
  redis.call('DEL', KEYS[1])
  if type(said) == 'string' then
    redis.pcall('DEL', '{note}' .. KEYS[1])
  end
  local name = ARGV[1] or KEYS[1]
  local head = redis.call('ZRANGE', '{queue}' .. name, 0, 0)[1]
  if head then
    redis.pcall('PUBLISH', '{wake}' .. string.sub(head, 1, 16), name)
  end
end
return was
