-- PERMIT (docs/protocol.md, "Several resources, readers, owners, semaphores"): takes one slot of a semaphore. A slot is
-- a lock of its own. While clients wait in the semaphore's queue, only the first waiter may take a slot.
-- KEYS: the key that a lock with the semaphore's name would have. ARGV: value, ttl ms, proposed counter in
-- microseconds, slot, number of slots; from a queued waiter also its id, ticket and heartbeat ms. A request without
-- these three does not join the queue.
-- Reply: the fencing number if the slot was granted, otherwise a list:
-- - a text with one character for each slot: 1 (free) or 0
-- - ms until a slot may be free
-- - the number of waiters ahead
-- - the largest ticket
if tonumber(ARGV[2]) > MAX_TTL then
  return redis.error_reply('ERR quorate: ttl above max_ttl')
end
local call, name, waiter = redis.call, KEYS[1], ARGV[6]
local key, line = '{slot}' .. ARGV[4] .. ':' .. name, '{slot}line:' .. name
local queue = '{queue}' .. line
local time = call('TIME')
--+ fence/read.lua
local lined = waiter or call('EXISTS', queue) == 1
if not lined and call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) then
  --+ fence/raise.lua
end
local held = call('GET', key)
if held == ARGV[1] then
  --+ fence/again.lua
end
local alive, ticket = '{alive}' .. line, '{ticket}' .. line
local ms, head = time[1] * 1000 + math.floor(time[2] / 1000), nil
if lined then
  if waiter then
    local id, number, beat = waiter, ARGV[7], tonumber(ARGV[8])
    --+ line/join.lua
  end
  local clock = string.format('%.0f', ms)
  --+ line/purge.lua
  head = call('ZRANGE', queue, 0, 0)[1]
end
local first = not head or head == waiter
if first and not held then
  call('SET', key, ARGV[1], 'PX', ARGV[2])
  --+ fence/raise.lua
end
local free, left = {}, nil
for slot = 0, tonumber(ARGV[5]) - 1 do
  local lives = call('PTTL', '{slot}' .. slot .. ':' .. name)
  free[slot + 1] = lives == -2 and '1' or '0'
  if lives ~= -2 and (not left or (lives >= 0 and lives < left)) then
    left = lives
  end
end
if not first then
  left = tonumber(call('ZSCORE', alive, head) or ms) - ms
end
--+ line/ahead.lua
return {table.concat(free), left or 0, ahead, tonumber(call('GET', ticket) or 0)}
