-- ACQUIRE with a queue (docs/protocol.md, "Queue"). Like acquire.lua, but a request never overtakes a queued waiter.
-- KEYS: lock. ARGV: value, ttl ms, proposed counter in microseconds. A waiter that joins the queue adds its id, ticket
-- and heartbeat ms.
-- Reply: the counter if the lock was granted, otherwise a list:
-- - ms until the lock may be free
-- - the number of waiters ahead
-- - the largest ticket
-- - the first 96 bytes of the holder's value, or ''
-- - the holder's note, if there is one
if tonumber(ARGV[2]) > MAX_TTL then
  return redis.error_reply('ERR quorate: ttl above max_ttl')
end
local call, key, waiter = redis.call, KEYS[1], ARGV[4]
local queue = '{queue}' .. key
local time = call('TIME')
local alive, ticket, ms, head
if waiter or call('EXISTS', queue) == 1 then
  alive, ticket = '{alive}' .. key, '{ticket}' .. key
  ms = time[1] * 1000 + math.floor(time[2] / 1000)
  if waiter then
    local id, number, beat = waiter, ARGV[5], tonumber(ARGV[6])
    --+ line/join.lua
  end
  head = call('ZRANGE', queue, 0, 0)[1]
  if head and head ~= waiter then
    local clock = string.format('%.0f', ms)
    --+ line/purge.lua
    if #dead > 0 then
      head = call('ZRANGE', queue, 0, 0)[1]
    end
  end
end
--+ fence/read.lua
if not head or head == waiter then
  if call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) then
    --+ fence/raise.lua
  end
end
local held = call('GET', key)
if held == ARGV[1] then
  --+ fence/again.lua
end
--+ line/refused.lua
