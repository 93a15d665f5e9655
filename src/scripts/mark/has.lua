-- Whether `ours` stands in the `mark` that breaks leave: a line for each value that was broken; of a class a line for each
-- hold, and one for the marker and the counter, with a tab between them.
local function has(mark, ours)
  return mark and string.find(mark, '\n' .. ours .. '\n', 1, true)
end
