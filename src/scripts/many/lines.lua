-- Sets `lines` to whether any queue has waiters. If so, adds the ticket keys of all `keys` to `names`: a queue never
-- outlives its ticket key, and a live waiter never outlives {lines}. If the user may not read {lines}, assume that there
-- are queues.
lines = lines and redis.pcall('EXISTS', '{lines}') ~= 0
if lines then
  for i, key in ipairs(keys) do
    names[count + i] = '{ticket}' .. key
  end
end
