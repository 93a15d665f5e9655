-- The waiter `id` takes or keeps its place in the line `queue` with the ticket `number`, and shows a sign of
-- life that is good for `beat` ms. `ms` is this master's time.
-- The sign that somebody stands in a line of this master, whichever: first, for who may not give it would be passed. It may
-- outlast them, so that not every sign of life has to write it.
if call('PTTL', '{lines}') < beat then
  call('SET', '{lines}', '1', 'PX', 2 * beat)
end
call('ZADD', alive, string.format('%.0f', ms + beat), id)
if call('ZADD', queue, number, id) == 1 then
  -- New in line: the next to come draws a larger ticket.
  if tonumber(call('GET', ticket) or 0) < tonumber(number) then
    call('SET', ticket, number, 'KEEPTTL')
  end
end
for _, name in ipairs({queue, alive, ticket}) do
  if call('PTTL', name) < beat then
    call('PEXPIRE', name, beat)
  end
end
