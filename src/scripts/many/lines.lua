-- Sets `lines` to false if no queue on this master has waiters. Otherwise adds the ticket keys of all `keys` to
-- `names`: a lock without a ticket key has no queue. If the user may not read {lines}, assume that there are waiters.
lines = lines and redis.pcall('EXISTS', '{lines}') ~= 0
if lines then
  for i, key in ipairs(keys) do
    names[count + i] = '{ticket}' .. key
  end
end
