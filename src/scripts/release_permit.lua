-- RELEASE of a slot (docs/protocol.md, "Several resources, readers, owners, semaphores"): deletes the slot's lock if it
-- is ours, leaves the queue of the semaphore, and wakes its first waiter.
-- KEYS: the key that a lock with the semaphore's name would have. ARGV: value, slot, the waiter's id or '', 1 to leave
-- the queue, and 1 if a note was written. Trailing arguments may be missing. Reply: 1 (deleted), 0 (the slot was not
-- ours).
local call, name, waiter = redis.call, KEYS[1], ARGV[3]
local key, line = '{slot}' .. ARGV[2] .. ':' .. name, '{slot}line:' .. name
local mine = 0
if call('GET', key) == ARGV[1] then
  mine = call('DEL', key)
  if ARGV[5] == '1' then
    --+ note/forget.lua
  end
end
local queue = '{queue}' .. line
if call('EXISTS', queue) == 0 then
  return mine
end
local alive = '{alive}' .. line
local left = 0
if ARGV[4] == '1' then
  left = call('ZREM', queue, waiter)
  if left == 1 then
    call('ZREM', alive, waiter)
  end
end
if mine == 0 and left == 0 then
  return 0
end
local time = call('TIME')
local clock = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
--+ line/purge.lua
local head = call('ZRANGE', queue, 0, 0)[1]
if head and head ~= waiter then
  -- The wake-up is only a hint, so errors are ignored: a user without the right to publish can release the slot.
  redis.pcall('PUBLISH', '{wake}' .. string.sub(head, 1, 16), line)
end
return mine
