-- BREAK, a step of a force-release (docs/protocol.md, "Force-release"), an operator's last resort. Adds the locks that
-- the force-release ends to the break record of the key, so that their holders cannot renew them. Optionally deletes the
-- lock and the note of its holder, and wakes the first waiter that is alive. The fencing counter stays.
-- A lock key of another type is not changed, because GET fails first.
-- KEYS: lock. ARGV: the name of its queue, 1 to delete the lock or 0, and for each lock to end, its value (at most 96
-- bytes) and its lines for the break record ('' for a lock of another library, which no client of quorate renews).
-- Reply: the state before this step, as STATUS returns it but without the queue.
local held = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
--+ note/said.lua
--+ mark/has.lua
local was = {held and string.sub(held, 1, 96), left, redis.call('GET', '{fence}' .. KEYS[1]), said}
local deletes, lines = false, {}
for i = 3, #ARGV, 2 do
  deletes = deletes or ARGV[2] == '1' and was[1] == ARGV[i]
  if ARGV[i + 1] ~= '' then
    lines[#lines + 1] = ARGV[i + 1]
  end
end
if #lines > 0 then
  local all = redis.call('GET', '{broken}' .. KEYS[1]) or ''
  for _, line in ipairs(lines) do
    if not has(all, line) then
      all = '\n' .. line .. '\n' .. all
    end
  end
  -- Without room for these locks, refuse: a holder whose line is dropped could restore its lock.
  if #all > 65536 then
    return redis.error_reply('ERR quorate: the break record is full: repeat this in two days, or delete the key {broken}' ..
      KEYS[1] .. ' if the holders of all earlier force-releases have ended')
  end
  if left ~= -1 then
    -- When a server is out of memory, it can refuse only the first write of a script. So begin with a write that it
    -- never refuses: the unchanged expiry, which needs no memory. If there is no lock key, this write changes nothing.
    redis.pcall('PEXPIRE', KEYS[1], math.max(left, 1))
  end
  -- Keep the record for two days, twice the longest TTL that a client can configure. A late renewal by the holder
  -- must still find the record.
  redis.call('SET', '{broken}' .. KEYS[1], all, 'PX', 2 * FENCE_TTL)
end
local holds = deletes and type(said) == 'table' and said or {}
-- At most 100 holds are listed, and the listed holds change with every renewal. If more holds share the lock, delete it:
-- a hold that is not in the record cannot be renewed because of its fencing number.
for i = 1, #holds < 300 and #holds or 0, 3 do
  if not has(redis.call('GET', '{broken}' .. KEYS[1]), holds[i]) then
    -- This hold joined after the locks to end were read. The force-release does not end it. Keep the lock key: the holds
    -- in the record cannot be renewed, and expire.
    deletes = false
  end
end
if deletes then
  redis.call('DEL', KEYS[1])
  if type(said) == 'string' then
    redis.pcall('DEL', '{note}' .. KEYS[1])
  end
  -- Each hold of the readers or the owner that share the lock has its own note.
  for i = 1, #holds, 3 do
    redis.pcall('DEL', '{of-hold}' .. holds[i] .. ':' .. KEYS[1])
  end
  local name = ARGV[1]
  for _, waiter in ipairs(redis.call('ZRANGE', '{queue}' .. name, 0, 99)) do
    if tonumber(redis.call('ZSCORE', '{alive}' .. name, waiter) or ms) > ms then
      redis.pcall('PUBLISH', '{wake}' .. string.sub(waiter, 1, 16), name)
      break
    end
  end
end
return was
