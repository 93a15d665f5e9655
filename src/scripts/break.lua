-- BREAK: an operator's last resort. Deletes the lock whoever holds it, and wakes who is next. The
-- fence counter stays, and so does a mark for longer than the holder could still renew: without it
-- the holder's next renewal would put the key back. Locks that were broken before stay marked as well. A value
-- of another type is never touched, for GET fails first.
-- KEYS: lock. ARGV as LOOK. Reply as LOOK without the line, from before; the note goes with the lock.
local held = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
--+ note/said.lua
local was = {held and string.sub(held, 1, 96), left, redis.call('GET', '{fence}' .. KEYS[1]), said}
if held then
  -- Nobody renews the lock of another client: only locks of ours are marked.
  local marked = held == '{shared}' or string.sub(held, 1, #'{owner}') == '{owner}'
    or #held == 32 and string.match(held, '^%x+$')
  if marked then
    local others = redis.call('GET', '{broken}' .. KEYS[1]) or ''
    local lines = {'', held, others}
    if type(said) == 'table' then
      -- Of a class: the counter and the holds, so that a hold that comes later is told from those that are broken.
      local counter = string.match(was[3] or '', '^%d+$') or '0'
      lines = {'', held .. '\t' .. counter}
      for i = 1, #said, 3 do
        lines[#lines + 1] = said[i]
      end
      lines[#lines + 1] = others
    end
    if left > 0 then
      -- Changes nothing and takes no memory: once a script has written, a full server lets it write the mark.
      redis.pcall('PEXPIRE', KEYS[1], left)
    end
    -- Room for 480 locks, the last one first: a break every three minutes for the longest ttl.
    local all = string.sub(table.concat(lines, '\n'), 1, 16384)
    -- Two days, twice the longest ttl that any client can have. What the key has left, and this client's MAX_TTL, say nothing
    -- about a renewal that is still on its way, or about a master where the break arrives later.
    redis.call('SET', '{broken}' .. KEYS[1], all, 'PX', 2 * FENCE_TTL)
  end
  redis.call('DEL', KEYS[1])
  if type(said) == 'string' then
    redis.pcall('DEL', '{note}' .. KEYS[1])
  end
  -- Of a class each hold has one.
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
