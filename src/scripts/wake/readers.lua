-- Wakes the process of the first waiter in the queue of `key`. If this waiter is a reader, also wakes the processes of
-- the readers behind it, up to the first writer.
-- A wake-up is only a hint, so errors are ignored.
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
