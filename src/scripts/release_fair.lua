-- RELEASE for clients that use queues (docs/protocol.md, "Release"): deletes the lock if it is ours, removes the
-- client's queue entry on request, and wakes the first waiter.
-- KEYS: lock. ARGV: value, the waiter's id, 1 to leave the queue, and 1 if a note was written. Trailing arguments may
-- be missing.
-- Reply: 1 (deleted), 0 (the lock was not ours).
local call, key, waiter = redis.call, KEYS[1], ARGV[2]
local mine = 0
if call('GET', key) == ARGV[1] then
  mine = call('DEL', key)
  if ARGV[4] == '1' then
    --+ note/forget.lua
  end
end
local queue = '{queue}' .. key
if call('EXISTS', queue) == 0 then
  return mine
end
local alive = '{alive}' .. key
local left = 0
if ARGV[3] == '1' then
  left = call('ZREM', queue, waiter)
  if left == 1 then
    call('ZREM', alive, waiter)
  end
end
if mine == 0 and left == 0 then
  return 0
end
local head = call('ZRANGE', queue, 0, 0)[1]
if not head or head == waiter then
  return mine
end
local time = call('TIME')
local clock = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
--+ line/purge.lua
if #dead > 0 then
  head = call('ZRANGE', queue, 0, 0)[1]
end
local held = head and mine == 0 and call('GET', key)
if held == '{shared}' then
  -- This waiter left the queue. Readers that were queued behind it may now join the readers that hold the lock.
  --+ wake/readers.lua
elseif head and not held then
  -- The wake-up is only a hint, so errors are ignored: a user without the right to publish can release the lock.
  redis.pcall('PUBLISH', '{wake}' .. string.sub(head, 1, 16), key)
end
return mine
