-- What who comes in order is told where the lock `key` is not free, which holds `held`, or where `head` stands first
-- in its line. `ms` is this master's time.
local left, note
if held then
  left = call('PTTL', key)
  -- A courtesy to who waits; a user who may not read it waits as well.
  note = redis.pcall('GET', '{note}' .. key)
else
  left = tonumber(call('ZSCORE', alive, head) or ms) - ms
end
--+ line/ahead.lua
local largest = tonumber(call('GET', '{ticket}' .. key) or 0)
return {left, ahead, largest, string.sub(held or '', 1, 96), type(note) == 'string' and string.sub(note, 1, NOTE_TOLD) or nil}
