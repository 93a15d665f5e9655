-- Whether there are `lines` at all, and what names those of all `keys` behind their `names`: a line never outlasts its
-- tickets, nor who lives in it the sign. Who may not look for the sign looks for all tickets.
lines = lines and redis.pcall('EXISTS', '{lines}') ~= 0
if lines then
  for i, key in ipairs(keys) do
    names[count + i] = '{ticket}' .. key
  end
end
