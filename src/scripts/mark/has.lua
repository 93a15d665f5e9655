-- Whether `mark`, the text of a break record, names the value `ours`. Each force-released value has a line. For shared
-- locks, a line with the marker of the readers or the owner, a tab and the counter comes first, then one line for each
-- hold.
local function has(mark, ours)
  return mark and string.find(mark, '\n' .. ours .. '\n', 1, true)
end
