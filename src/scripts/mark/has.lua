-- Whether `mark`, the text of the break record, names `ours`. The text has one line for each force-released value. For
-- a lock that readers or an owner shared, it has one line with their marker, a tab and the counter, and then one line
-- for each hold.
local function has(mark, ours)
  return mark and string.find(mark, '\n' .. ours .. '\n', 1, true)
end
