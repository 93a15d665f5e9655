-- Whether `mark`, the text of the break marker, names `ours`. The text has a line for each force-released value. For a
-- class it has one line with the class marker and the counter, separated by a tab, and then one line for each hold.
local function has(mark, ours)
  return mark and string.find(mark, '\n' .. ours .. '\n', 1, true)
end
