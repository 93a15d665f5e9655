-- Finds out whether locks can have waiters, before the queues are read.
-- - If the key {lines} is missing, no lock on this master has waiters: sets `lines` to false.
-- - Otherwise adds the key {ticket} of each lock to `names`, the list of keys to read. A lock without this key has no
--   waiters.
-- If EXISTS fails, the script assumes that there are waiters.
lines = lines and redis.pcall('EXISTS', '{lines}') ~= 0
if lines then
  for i, key in ipairs(keys) do
    names[count + i] = '{ticket}' .. key
  end
end
