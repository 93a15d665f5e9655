-- BREAK: an operator's last resort. Deletes the lock whoever holds it, keeps the fence counter,
-- and never touches a value of another type (GET fails first).
-- KEYS: lock, fence counter. Reply as LOOK, from before.
local was = {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[2])}
redis.call('DEL', KEYS[1])
return was
