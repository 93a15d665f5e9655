local ahead = 0
if waiter then
  ahead = call('ZRANK', queue, waiter)
elseif head then
  ahead = call('ZCARD', queue)
end
