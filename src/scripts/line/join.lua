-- Adds the waiter `id` to the queue `queue` with the ticket `number`, or renews its place. The place expires after
-- `beat` ms without a heartbeat. `ms` is this master's time.
-- The key {lines} shows that some queue on this master has waiters. The key is written first: if the user may not write
-- it, the waiter must not join, because batched acquires would overtake this waiter. {lines} may outlive the waiters,
-- so that not every heartbeat has to write it.
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
  -- This waiter is the first, or the ticket key was deleted or evicted. Without a ticket key, the next waiter would
  -- draw a ticket below those in the queue, and combined requests would take the queue for empty.
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
