-- The waiter `id` takes or keeps its place in the line `queue` with the ticket `number`, and shows a sign of
-- life that is good for `beat` ms. `ms` is this master's time.
-- The sign that somebody stands in a line of this master, whichever: first, for who may not give it would be passed. It may
-- outlast them, so that not every sign of life has to write it.
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
  -- This waiter is the first in line, or the ticket key was deleted or evicted. Without it the next waiter would draw a ticket
  -- below those in the queue, and calls for many locks would take the line for empty.
  local last = call('ZRANGE', queue, -1, -1, 'WITHSCORES')
  call('SET', ticket, string.format('%.0f', last[2]), 'PX', ends)
else
  if new and tonumber(call('GET', ticket)) < tonumber(number) then
    -- The next waiter draws a larger ticket.
    call('SET', ticket, number, 'KEEPTTL')
  end
  if left < beat then
    call('PEXPIRE', ticket, beat)
  end
end
