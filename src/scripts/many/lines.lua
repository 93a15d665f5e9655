-- If the key {lines} is missing, no queue on this master has waiters: sets `lines` to false.
-- Otherwise adds the ticket key of each lock to `names`, the list of keys to read: a lock has a queue only if its
-- ticket key exists. If EXISTS fails, the script assumes that there are waiters.
lines = lines and redis.pcall('EXISTS', '{lines}') ~= 0
if lines then
  for i, key in ipairs(keys) do
    names[count + i] = '{ticket}' .. key
  end
end
