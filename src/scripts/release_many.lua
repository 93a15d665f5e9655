-- RELEASE of many (docs/protocol.md, "Release"): releases many locks that have no notes. If clients use queues, each
-- lock is handled as in release_fair.lua, otherwise as in release.lua.
-- KEYS: locks, all different. ARGV: the value of each, and 1 if clients use queues (otherwise missing).
-- Reply: one character per lock:
-- - 1: deleted
-- - 0: not ours
-- - '-': nothing was done; the client must send a single release for this lock
-- If a queue key has another type, the reply is an array with an error in place of that lock's character. The lock
-- itself was released.
local call, keys, count = redis.call, KEYS, #KEYS
local lines, names = ARGV[count + 1], {unpack(keys)}
--+ many/lines.lua
--+ many/seen.lua
--+ line/first.lua
local said, ours, heads, mine, odd = {}, {}, {}, 0, false
for i, key in ipairs(keys) do
  local held = seen[i] or redis.pcall('GET', key)
  if type(held) == 'table' then
    said[i] = '-'
  elseif held ~= ARGV[i] then
    said[i] = '0'
  else
    mine = mine + 1
    said[i], ours[mine] = '1', key
    if seen[count + i] then
      local good, head = pcall(first, key)
      if good then
        heads[i] = head
      else
        -- The queue could not be read, but the lock has been released.
        said[i], odd = type(head) == 'table' and head or redis.error_reply(tostring(head)), true
      end
    end
  end
end
if mine > 0 and type(redis.pcall('DEL', unpack(ours))) == 'table' then
  return string.rep('-', count)
end
for i, key in ipairs(keys) do
  if heads[i] then
    -- The wake-up is only a hint, so errors are ignored: a user without the right to publish can release the lock.
    redis.pcall('PUBLISH', '{wake}' .. string.sub(heads[i], 1, 16), key)
  end
end
return odd and said or table.concat(said)
