-- EXTEND (docs/protocol.md, "Renewal"): renews many locks. Never shortens a lock. Restores a missing lock, unless an
-- operator has force-released it.
-- KEYS: locks. ARGV: value and ttl ms of each. A ttl of 0 means that the request was withdrawn: do not change this
-- lock. A minus before the ttl means that the lock has a note: extend the note's expiry as well.
-- Reply: one digit per lock:
-- - 0: not ours, or force-released
-- - 1: ours
-- - 2: was missing, restored
-- - 3: withdrawn
-- - 4: ours, but its note is gone
-- - 5: unknown, because another key of this lock, for example its break record, has a wrong type
-- If a lock failed (no permission, or a full server that cannot restore it), the reply is an array with the error in
-- place of the lock's digit. The script goes on with the other locks.
local said = {}
--+ mark/has.lua
--+ many/call.lua
--+ many/each.lua
local function extend(key, value, ttl, noted)
  local held = redis.pcall('GET', key)
  if type(held) == 'table' then
    if string.sub(held.err, 1, 9) == 'WRONGTYPE' then
      return '0'
    end
    -- GET failed because the client's user lacks the right to read the key. Fail with the same error: `call` raises it.
    -- Do not return 0 (not ours), because the client may still hold the lock.
    held = call('GET', key)
  end
  if held == value then
    -- A delayed acquire of a force-released lock can set the lock key again. If the break record is not readable, the
    -- lock is renewed.
    local mark = redis.pcall('GET', '{broken}' .. key)
    if type(mark) == 'string' and has(mark, value) then
      return '0'
    end
    local left = call('PTTL', key)
    if left < tonumber(ttl) then
      call('PEXPIRE', key, ttl)
      left = ttl
    end
    if noted then
      local note = redis.pcall('GETEX', '{note}' .. key, 'PX', left * NOTE_LIVES)
      if type(note) ~= 'string' or string.sub(note, 1, 32) ~= value then
        return '4'
      end
    end
    return '1'
  elseif held or has(call('GET', '{broken}' .. key), value) then
    return '0'
  end
  call('SET', key, value, 'PX', ttl)
  return '2'
end
for i, key in ipairs(KEYS) do
  local value, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local noted = string.sub(ttl, 1, 1) == '-'
  if noted then
    ttl = string.sub(ttl, 2)
  end
  said[i] = ttl == '0' and '3' or each(extend, key, value, ttl, noted)
end
return odd and said or table.concat(said)
