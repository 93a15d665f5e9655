-- Sets `lines` to false if no queue on this master has waiters, which the key {lines} shows. Otherwise adds the ticket
-- keys of all `keys` to `names`, the list of keys to read: a lock has a queue only if its ticket key exists.
-- If the user lacks the right to read {lines}, the script assumes that there are waiters.
lines = lines and redis.pcall('EXISTS', '{lines}') ~= 0
if lines then
  for i, key in ipairs(keys) do
    names[count + i] = '{ticket}' .. key
  end
end
