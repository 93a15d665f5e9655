-- Returns the refusal of a request from a client that uses queues. `held` is the value of the lock `key`. If `held` is
-- false, the lock is free, and `head` is the first waiter in its queue. `ms` is this master's time.
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
