-- ACQUIRE of many (docs/protocol.md, "Queue"): requests many locks for clients that are not queued. If clients use
-- queues, each lock is handled as in acquire_fair.lua, otherwise as in acquire.lua.
-- KEYS: locks, all different. ARGV: ttl ms, 1 if clients use queues or else 0, and for each lock its value and proposed
-- counter in microseconds.
-- Reply, for each lock:
-- - -1: granted with the proposed counter
-- - another counter: granted with this counter
-- - a list or an error: the refusal or the error that a single request would get
-- - 0: nothing was done for this lock; the client must request the lock with a script for one lock
-- A server that is out of memory refuses a script only at its first write. If the first write needs no memory, the
-- server also grants the locks after it.
if tonumber(ARGV[1]) > MAX_TTL then
  return redis.error_reply('ERR quorate: ttl above max_ttl')
end
local call, keys, count, ttl = redis.call, KEYS, #KEYS, ARGV[1]
local ordered, names = ARGV[2] == '1', {}
for i, key in ipairs(keys) do
  names[i] = '{fence}' .. key
end
local lines = ordered
--+ many/lines.lua
--+ many/seen.lua
--+ line/first.lua
local time = call('TIME')
local lowest = string.format('%.0f', time[1] * 1000000 + time[2] - 1000000)
local highest = string.format('%.0f', time[1] * 1000000 + time[2] + 1000000)
local usual, find = #lowest == 16 and #highest == 16, string.find
-- The start of the 1,000 s period that contains `highest`. If a lock's old counter is below this number, the new
-- counter gets a new expiry (fence/raise.lua).
local began = string.sub(highest, 1, 7) .. '000000000'

-- Handles one lock as a script for one lock would. Used if the faster code below cannot take the lock. When the
-- function takes the lock, it sets `taken` to `key`. If a later command fails, the reply for this lock is then the
-- error: the reply 0 would mean that nothing was done.
local taken
local function attempt(key, ARGV)
  local queue, alive, waiter = '{queue}' .. key, '{alive}' .. key, nil
  local ms = time[1] * 1000 + math.floor(time[2] / 1000)
  local head = lines and first(key)
  --+ fence/read.lua
  if not head and call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) then
    taken = key
    --+ fence/raise.lua
  end
  local held = call('GET', key)
  if held == ARGV[1] then
    --+ fence/again.lua
  end
  if not ordered then
    return {call('PTTL', key), counter}
  end
  --+ line/refused.lua
end

-- Sets the counter of the lock `key`, which has just been taken, to the proposal `text`. `was` is the old counter, if
-- there is one. The expiry is always FENCE_TTL, because the proposal is at most a second ahead of this master's time.
local function number(key, fence, was, text)
  if was then
    local set
    if was >= began then
      set = redis.pcall('SET', fence, text, 'KEEPTTL')
    else
      set = redis.pcall('SET', fence, text, 'PX', FENCE_TTL)
    end
    return set.err and set or -1
  end
  local set = redis.pcall('SET', fence, text, 'PX', FENCE_TTL, 'NX')
  if set then
    return set.err and set or -1
  end
  -- The counter's key exists (NX failed) but has a wrong type (MGET returned nothing). Delete the new lock.
  local undone = redis.pcall('DEL', key)
  return type(undone) == 'table' and undone or 0
end

local said = {}
for i, key in ipairs(keys) do
  local value, text, was, free = ARGV[2 * i + 1], ARGV[2 * i + 2], seen[i], nil
  if usual and #text == 16 and text >= lowest and text <= highest and not seen[count + i]
    and (not was or #was == 16 and was < text and not find(was, '%D')) then
    free = redis.pcall('SET', key, value, 'NX', 'PX', ttl)
  end
  if free and free.ok then
    said[i] = number(key, names[i], was, text)
  else
    local good, answer = pcall(attempt, key, {value, ttl, text})
    if good then
      said[i] = answer
    elseif taken == key then
      said[i] = type(answer) == 'table' and answer or redis.error_reply(tostring(answer))
    else
      said[i] = 0
    end
  end
end
return said
