-- Whether the break record `mark` names the value `ours`. The record has one line for each force-released value. For a
-- shared lock, a line with the marker of the readers or the owner, a tab and the counter comes first.
local function has(mark, ours)
  return mark and string.find(mark, '\n' .. ours .. '\n', 1, true)
end
