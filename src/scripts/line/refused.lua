-- Returns the refusal of a request from a client that uses queues.
-- - `held`: the value of the lock `key`, or false if the lock is free
-- - `head`: the first waiter in the lock's queue, needed only if the lock is free
-- - `ms`: this master's time
local left, note
if held then
  left = call('PTTL', key)
  -- The holder's note is for information only. If the user lacks the right to read it, the refusal contains no note.
  note = redis.pcall('GET', '{note}' .. key)
else
  left = tonumber(call('ZSCORE', alive, head) or ms) - ms
end
--+ line/ahead.lua
local largest = tonumber(call('GET', '{ticket}' .. key) or 0)
return {left, ahead, largest, string.sub(held or '', 1, 96), type(note) == 'string' and string.sub(note, 1, NOTE_SHOWN) or nil}
