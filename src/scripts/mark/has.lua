-- Whether `mark`, the text of the break record, names the value `ours`. The text has one line for each force-released
-- value. A lock that readers or an owner shared has one line with the marker of its class, a tab and its fencing
-- counter, and then one line for each hold.
local function has(mark, ours)
  return mark and string.find(mark, '\n' .. ours .. '\n', 1, true)
end
