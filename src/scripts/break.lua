-- BREAK: an operator's last resort. Deletes the lock whoever holds it, and wakes who is next. The
-- fence counter stays, and so does a note for as long as the holder could still renew: without it
-- the holder's next renewal would put the key back. A value of another type is never touched, for
-- GET fails first.
-- KEYS: lock. Reply as LOOK without the line, from before; the note goes with the lock.
local held = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local note = redis.pcall('GET', '{note}' .. KEYS[1])
note = type(note) == 'string' and note or nil
local was = {held, left, redis.call('GET', '{fence}' .. KEYS[1]), note}
if held then
  if left > 0 then
    redis.call('SET', '{broken}' .. KEYS[1], held, 'PX', left)
  end
  redis.call('DEL', KEYS[1])
  if note then
    redis.pcall('DEL', '{note}' .. KEYS[1])
  end
  local head = redis.call('ZRANGE', '{queue}' .. KEYS[1], 0, 0)[1]
  if head then
    redis.pcall('PUBLISH', '{wake}' .. string.sub(head, 1, 16), KEYS[1])
  end
end
return was
