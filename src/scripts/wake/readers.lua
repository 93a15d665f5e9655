-- Wakes the first waiter in the queue of `key` if it is a writer; otherwise the processes of all readers up to the first
-- writer. Only a hint: a user without permission to publish goes on.
local woken, count = {}, 0
local standing = call('ZRANGE', '{queue}' .. key, 0, 255)
for at, other in ipairs(standing) do
  local reads, process = string.sub(other, -2) == ':r', string.sub(other, 1, 16)
  if not reads and at > 1 then
    break
  end
  if not woken[process] then
    woken[process], count = true, count + 1
    redis.pcall('PUBLISH', '{wake}' .. process, key)
  end
  if not reads or count == 64 then
    break
  end
end
