-- BREAK (force-release), an operator's last resort. Deletes the lock whichever client holds it, deletes its note, and
-- wakes the first waiter that is alive. The fencing counter stays. The script writes a break record, because the
-- holder's next renewal would otherwise restore the key. The record stays for longer than the holder can still renew,
-- and keeps its older entries. A lock key of another type is never touched, because GET fails first.
-- KEYS: lock. ARGV: the name of its queue, as for LOOK.
-- Reply: the state before the break, as LOOK returns it but without the queue.
local held = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
--+ note/said.lua
local was = {held and string.sub(held, 1, 96), left, redis.call('GET', '{fence}' .. KEYS[1]), said}
if held then
  -- Only quorate's own locks get a break record, because no client of quorate renews a foreign key.
  local marked = held == '{shared}' or string.sub(held, 1, #'{owner}') == '{owner}'
    or #held == 32 and string.match(held, '^%x+$')
  if marked then
    local others = redis.call('GET', '{broken}' .. KEYS[1]) or ''
    local lines = {'', held, others}
    if type(said) == 'table' then
      -- Readers or an owner share the lock: list the counter and each hold in the break record, so that later holds can
      -- be distinguished from the force-released holds.
      local counter = string.match(was[3] or '', '^%d+$') or '0'
      lines = {'', held .. '\t' .. counter}
      for i = 1, #said, 3 do
        lines[#lines + 1] = said[i]
      end
      lines[#lines + 1] = others
    end
    if left > 0 then
      -- This PEXPIRE changes no expiry and takes no memory. A full server refuses a script's writes only until the
      -- script's first write. So after this PEXPIRE the record can be written.
      redis.pcall('PEXPIRE', KEYS[1], left)
    end
    -- The break record has room for 480 values, newest first. That is enough for one force-release every three minutes
    -- during the longest TTL.
    local all = string.sub(table.concat(lines, '\n'), 1, 16384)
    -- Keep the record for two days: twice the longest TTL that any client can configure. The key's remaining TTL and
    -- this client's MAX_TTL are too short, because the renewal of another client, or this force-release on another
    -- master, can arrive later.
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
