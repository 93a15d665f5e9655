-- Adds the waiter `id` with the ticket `number` to the queue `queue`, or renews its place for `beat` ms. `ms` is this
-- master's time.
-- The key {lines} shows that a queue on this master has waiters. If {lines} is missing, batched acquires ignore all
-- queues. So {lines} is written first: if this write fails, the waiter does not join.
-- The expiry of {lines} is twice `beat`, so that not every heartbeat has to renew {lines}.
if call('PTTL', '{lines}') < beat then
  call('SET', '{lines}', '1', 'PX', 2 * beat)
end
call('ZADD', alive, string.format('%.0f', ms + beat), id)
local new, ends = call('ZADD', queue, number, id) == 1, beat
for _, name in ipairs({queue, alive}) do
  local left = call('PTTL', name)
  if left < beat then
    call('PEXPIRE', name, beat)
  end
  ends = math.max(ends, left)
end
local left = call('PTTL', ticket)
if left == -2 then
  -- The ticket key is missing: the queue is new, or the key was deleted. Set it to the largest ticket of the queue.
  -- Without the key, batched requests would assume that the queue is empty.
  local last = call('ZRANGE', queue, -1, -1, 'WITHSCORES')
  call('SET', ticket, string.format('%.0f', last[2]), 'PX', ends)
else
  if new and tonumber(call('GET', ticket)) < tonumber(number) then
    -- Raise the ticket key to this waiter's ticket, so that later waiters draw a larger one.
    call('SET', ticket, number, 'KEEPTTL')
  end
  if left < beat then
    call('PEXPIRE', ticket, beat)
  end
end
