-- CONFIRM of several locks, or of a hold of readers or an owner (docs/protocol.md, "Several resources, readers, owners,
-- semaphores"): sets the fencing counter of every lock to exactly the number, if all locks are ours.
-- KEYS: lock keys. ARGV: value, number, and for each key 'x' (exclusive) or the marker of the readers or the owner.
-- Reply: 1 (confirmed), 0 (one of the keys is not ours), -1 (the owner has other holds of one of the locks), or the
-- largest counter if one of the counters is above the number.
local call, value = redis.call, ARGV[1]
local time = call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local above = tonumber(ARGV[2])
local function read_counter(key)
  --+ fence/read.lua
  return counter
end
for i, key in ipairs(KEYS) do
  local mode, holds = ARGV[2 + i], '{holds}' .. key
  local held = call('GET', key)
  if mode == 'x' then
    if held ~= value then
      return 0
    end
  else
    if held ~= mode then
      return 0
    end
    local deadline = call('ZSCORE', holds, value)
    if not deadline or tonumber(deadline) <= ms then
      return 0
    end
    local others = call('ZCOUNT', holds, string.format('(%.0f', ms), '+inf') - 1
    if mode ~= '{shared}' and others > 0 then
      return -1
    end
  end
  local number = read_counter(key)
  if type(number) == 'table' then
    return number
  end
  above = math.max(above, number)
end
if above > tonumber(ARGV[2]) then
  return above
end
local v, now = above, time[1] * 1000000 + time[2]
--+ fence/lives.lua
for _, key in ipairs(KEYS) do
  call('SET', '{fence}' .. key, ARGV[2], 'PX', fence_lives)
end
return 1
