-- EXTEND (protocol, section 4), for many locks at once. Never shortens; puts a missing lock back,
-- unless an operator has broken it.
-- KEYS: locks. ARGV: value and ttl ms of each; a ttl of 0 means withdrawn, leave it alone; with a minus in
-- front of it there is a note, which is to be kept.
-- Reply: one digit a lock: 1 (ours), 2 (was missing, put back), 3 (withdrawn), 4 (ours, its note is gone),
-- 5 (not known), 0 (somebody else's).
local said = {}
--+ mark/has.lua
for i = 1, #KEYS do
  local value, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local noted = string.sub(ttl, 1, 1) == '-'
  if noted then
    ttl = string.sub(ttl, 2)
  end
  local held = ttl ~= '0' and redis.pcall('GET', KEYS[i])
  if type(held) == 'table' and string.sub(held.err, 1, 9) ~= 'WRONGTYPE' then
    -- Not allowed to look: that is no answer, and least of all "somebody else's".
    return held
  end
  if ttl == '0' then
    said[i] = '3'
  elseif held == value then
    local left = redis.call('PTTL', KEYS[i])
    if left < tonumber(ttl) then
      redis.call('PEXPIRE', KEYS[i], ttl)
      left = ttl
    end
    said[i] = '1'
    if noted then
      local note = redis.pcall('GETEX', '{note}' .. KEYS[i], 'PX', left * NOTE_LIVES)
      if type(note) ~= 'string' or string.sub(note, 1, 32) ~= value then
        said[i] = '4'
      end
    end
  elseif held == false then
    local broken = redis.pcall('GET', '{broken}' .. KEYS[i])
    if type(broken) ~= 'table' and has(broken, value) then
      said[i] = '0'
    elseif type(broken) ~= 'table' then
      redis.call('SET', KEYS[i], value, 'PX', ttl)
      said[i] = '2'
    elseif string.sub(broken.err, 1, 9) == 'WRONGTYPE' then
      -- It cannot be told whether it was broken: no answer for this one, and in no others' way.
      said[i] = '5'
    else
      -- Not allowed: raised here, where it says what.
      redis.call('GET', '{broken}' .. KEYS[i])
    end
  else
    said[i] = '0'
  end
end
return table.concat(said)
