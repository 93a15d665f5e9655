-- Whether the `mark` that breaks leave names `ours`. It has a line for each value that was broken. For a class it has a line
-- for each hold, and one for the marker and the counter, with a tab between them.
local function has(mark, ours)
  return mark and string.find(mark, '\n' .. ours .. '\n', 1, true)
end
