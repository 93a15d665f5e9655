-- Removes dead waiters from the queue `queue`. `clock` is this master's time in ms, as text.
local dead = call('ZRANGEBYSCORE', alive, '-inf', clock, 'LIMIT', 0, 1000)
if #dead > 0 then
  call('ZREM', queue, unpack(dead))
  call('ZREM', alive, unpack(dead))
end
