-- Whether `ours` stands in the `mark` that breaks leave: one value a line, of each that was broken.
local function has(mark, ours)
  return mark and string.find(mark, '\n' .. ours .. '\n', 1, true)
end
