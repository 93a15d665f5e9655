-- UNCLAIM (docs/protocol.md, "Several resources, readers, owners, semaphores"): deletes the locks or holds that are
-- ours, leaves the queues, and wakes the first waiter of each queue.
-- KEYS: lock keys. ARGV: value, the waiter's id or '', a bit mask (1 to leave the queues, 2 if notes were written), and
-- for each key 'x' (exclusive) or the marker of the readers or the owner.
-- Reply: how many of the keys were ours.
local call, value, waiter = redis.call, ARGV[1], ARGV[2]
local leave, noted = ARGV[3] % 2 == 1, ARGV[3] >= '2'
local held, ours = {}, 0
for i, key in ipairs(KEYS) do
  held[i] = call('GET', key)
end
-- This master's time in ms as text, read on first use.
local clock
local function look_at_clock()
  if not clock then
    local time = call('TIME')
    clock = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  end
end
for i, key in ipairs(KEYS) do
  local mode, holds, free = ARGV[3 + i], '{holds}' .. key, not held[i]
  local mine = 0
  if mode == 'x' then
    if held[i] == value then
      mine, free = call('DEL', key), true
      if noted then
        --+ note/forget.lua
      end
    end
  elseif held[i] == mode then
    mine = call('ZREM', holds, value)
    if noted then
      redis.pcall('DEL', '{of-hold}' .. value .. ':' .. key)
    end
    local last = call('ZRANGE', holds, -1, -1, 'WITHSCORES')
    if last[1] then
      -- Remove expired holds.
      look_at_clock()
      if call('ZREMRANGEBYSCORE', holds, '-inf', clock) > 0 then
        last = call('ZRANGE', holds, -1, -1, 'WITHSCORES')
      end
    end
    if not last[1] then
      free = call('DEL', key) == 1
    elseif mine == 1 then
      -- The lock key must live as long as the last of the remaining holds.
      call('PEXPIREAT', key, string.format('%.0f', last[2]))
    end
  end
  ours = ours + mine
  local left, queue = 0, '{queue}' .. key
  if waiter ~= '' and leave then
    local id = mode == '{shared}' and waiter .. ':r' or waiter
    left = call('ZREM', queue, id)
    if left == 1 then
      call('ZREM', '{alive}' .. key, id)
    end
  end
  if ((mine == 1 and free) or left == 1) and call('EXISTS', queue) == 1 then
    look_at_clock()
    local alive = '{alive}' .. key
    --+ line/purge.lua
    local now = call('GET', key)
    if not now or now == '{shared}' then
      --+ wake/readers.lua
    end
  end
end
return ours
