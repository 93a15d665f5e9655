-- EXTEND (protocol, section 4), for many locks at once. Never shortens; puts a missing lock back,
-- unless an operator has broken it.
-- KEYS: locks. ARGV: value and ttl ms of each; a ttl of 0 means withdrawn, leave it alone; with a minus in
-- front of it there is a note, which is to be kept.
-- Reply: one digit a lock: 1 (ours), 2 (was missing, put back), 3 (withdrawn), 4 (ours, its note is gone),
-- 5 (not known), 0 (somebody else's). If a lock failed, an array with its error in place of its digit: a lock that cannot be
-- looked at, or that a full server does not restore, ends no other renewal.
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
    -- The user may not read it, which does not mean "somebody else's". Asked again, for an error that names the call.
    held = call('GET', key)
  end
  if held == value then
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
