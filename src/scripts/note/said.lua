-- Sets `said` to the note of the lock KEYS[1], which has the value `held`, or to nil if no note is readable. If readers
-- or an owner share the lock, sets `said` to a flat list instead: the value, the remaining ms, and the note or '' of
-- each hold. `ms` is this master's time.
local said = redis.pcall('GET', '{note}' .. KEYS[1])
said = type(said) == 'string' and string.sub(said, 1, NOTE_SHOWN) or nil
if held == '{shared}' or held and string.sub(held, 1, #'{owner}') == '{owner}' then
  said = {}
  local holds = redis.pcall('ZRANGE', '{holds}' .. KEYS[1], -100, -1, 'WITHSCORES')
  for i = 1, holds.err and 0 or #holds, 2 do
    if tonumber(holds[i + 1]) > ms then
      local note = redis.pcall('GET', '{of-hold}' .. holds[i] .. ':' .. KEYS[1])
      said[#said + 1] = holds[i]
      said[#said + 1] = holds[i + 1] - ms
      said[#said + 1] = type(note) == 'string' and string.sub(note, 1, NOTE_SHOWN) or ''
    end
  end
end
