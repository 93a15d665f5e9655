-- Sets `lines` to whether any queue on this master may have waiters. If so, adds the ticket keys of all `keys` to
-- `names`, because a lock without a ticket key has no queue. The key {lines} exists as long as any waiter is alive. If
-- the user may not read {lines}, assume that there are waiters.
lines = lines and redis.pcall('EXISTS', '{lines}') ~= 0
if lines then
  for i, key in ipairs(keys) do
    names[count + i] = '{ticket}' .. key
  end
end
