-- BREAK: an operator's last resort. Deletes the lock whoever holds it, and wakes the first waiter. The
-- fence counter stays. A marker stays for longer than the holder can still renew: without the marker, the
-- holder's next renewal would restore the key. Markers of earlier breaks are kept. A lock key of another type
-- is never touched, because GET fails first.
-- KEYS: lock. ARGV: the name of its queue, as for LOOK. Also deletes the note.
-- Reply: the state before the break, as LOOK but without the queue.
local held = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
--+ note/said.lua
local was = {held and string.sub(held, 1, 96), left, redis.call('GET', '{fence}' .. KEYS[1]), said}
if held then
  -- Only quorate's own locks get a marker: no client renews a foreign key.
  local marked = held == '{shared}' or string.sub(held, 1, #'{owner}') == '{owner}'
    or #held == 32 and string.match(held, '^%x+$')
  if marked then
    local others = redis.call('GET', '{broken}' .. KEYS[1]) or ''
    local lines = {'', held, others}
    if type(said) == 'table' then
      -- A class: list the counter and each hold, so that a later hold can be distinguished from the broken ones.
      local counter = string.match(was[3] or '', '^%d+$') or '0'
      lines = {'', held .. '\t' .. counter}
      for i = 1, #said, 3 do
        lines[#lines + 1] = said[i]
      end
      lines[#lines + 1] = others
    end
    if left > 0 then
      -- Does not change the expiry and takes no memory. Once a script has written, a full server also lets it write the marker.
      redis.pcall('PEXPIRE', KEYS[1], left)
    end
    -- Room for 480 values, the newest first: one break every three minutes for the longest ttl.
    local all = string.sub(table.concat(lines, '\n'), 1, 16384)
    -- Two days: twice the longest ttl that any client can configure. The key's remaining ttl and this client's MAX_TTL do
    -- not limit how late another client's renewal can arrive, or when the break reaches another master.
    redis.call('SET', '{broken}' .. KEYS[1], all, 'PX', 2 * FENCE_TTL)
  end
  redis.call('DEL', KEYS[1])
  if type(said) == 'string' then
    redis.pcall('DEL', '{note}' .. KEYS[1])
  end
  -- Each hold of a class has its own note.
  for i = 1, type(said) == 'table' and #said or 0, 3 do
    redis.pcall('DEL', '{of-hold}' .. said[i] .. ':' .. KEYS[1])
  end
  local name = ARGV[1] or KEYS[1]
  local head = redis.call('ZRANGE', '{queue}' .. name, 0, 0)[1]
  if head then
    redis.pcall('PUBLISH', '{wake}' .. string.sub(head, 1, 16), name)
  end
end
return was
