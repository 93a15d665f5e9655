-- Removes dead waiters from the queue of `key`, and returns its first waiter.
local function first(key)
  local queue, alive = '{queue}' .. key, '{alive}' .. key
  local head = call('ZRANGE', queue, 0, 0)[1]
  if head then
    local time = call('TIME')
    local clock = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
    --+ line/purge.lua
    if #dead > 0 then
      head = call('ZRANGE', queue, 0, 0)[1]
    end
  end
  return head
end
