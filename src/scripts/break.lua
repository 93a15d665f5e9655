-- BREAK (force-release), an operator's last resort: deletes the lock of any client and the note of its holder, and
-- wakes the first waiter that is alive. The fencing counter stays.
-- The script also writes a break record, so that the holder's next renewal does not restore the lock.
-- A lock key of another type is not changed, because GET fails first.
-- KEYS: lock. ARGV: the name of its queue, as for LOOK.
-- Reply: the state before the break, as LOOK returns it but without the queue.
local held = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
--+ note/said.lua
local was = {held and string.sub(held, 1, 96), left, redis.call('GET', '{fence}' .. KEYS[1]), said}
if held then
  -- Write a break record only for a lock of quorate: no client of quorate renews a lock of another library.
  local marked = held == '{shared}' or string.sub(held, 1, #'{owner}') == '{owner}'
    or #held == 32 and string.match(held, '^%x+$')
  if marked then
    local others = redis.call('GET', '{broken}' .. KEYS[1]) or ''
    local lines = {'', held, others}
    if type(said) == 'table' then
      -- The lock consists of holds (of readers, or of one owner): record its counter, and the value of each hold.
      local counter = string.match(was[3] or '', '^%d+$') or '0'
      lines = {'', held .. '\t' .. counter}
      for i = 1, #said, 3 do
        lines[#lines + 1] = said[i]
      end
      lines[#lines + 1] = others
    end
    if left > 0 then
      -- When a server is out of memory, it can refuse only the first write of a script. So begin with a write that it
      -- never refuses: the expiry, which needs no memory.
      redis.pcall('PEXPIRE', KEYS[1], left)
    end
    -- Limit the record to 16 KiB, and drop the oldest values.
    local all = string.sub(table.concat(lines, '\n'), 1, 16384)
    -- Keep the record for two days, twice the longest TTL that a client can configure. A late renewal by the holder
    -- must still find the record.
    redis.call('SET', '{broken}' .. KEYS[1], all, 'PX', 2 * FENCE_TTL)
  end
  redis.call('DEL', KEYS[1])
  if type(said) == 'string' then
    redis.pcall('DEL', '{note}' .. KEYS[1])
  end
  -- Each hold of the readers or the owner that share the lock has its own note.
  for i = 1, type(said) == 'table' and #said or 0, 3 do
    redis.pcall('DEL', '{of-hold}' .. said[i] .. ':' .. KEYS[1])
  end
  local name = ARGV[1] or KEYS[1]
  for _, waiter in ipairs(redis.call('ZRANGE', '{queue}' .. name, 0, 99)) do
    if tonumber(redis.call('ZSCORE', '{alive}' .. name, waiter) or ms) > ms then
      redis.pcall('PUBLISH', '{wake}' .. string.sub(waiter, 1, 16), name)
      break
    end
  end
end
return was
