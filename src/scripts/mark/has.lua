-- Whether `mark`, the text of the break record, names the value `ours`. The text has one line for each force-released
-- value. For a lock that readers or an owner shared, this line has their marker, a tab and the counter, and one line
-- for each hold follows.
local function has(mark, ours)
  return mark and string.find(mark, '\n' .. ours .. '\n', 1, true)
end
