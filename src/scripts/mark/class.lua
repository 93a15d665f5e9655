-- Whether a force-release ended a hold of readers or of an owner. `mark` is the text of the break record, `mode` the
-- marker of the readers or the owner. `value` and `number` are the value and the fencing number of the hold.
-- The hold was ended if the text names its value, or if `number` is not above the counter at the last force-release of
-- `mode`. Later holds have larger numbers. Only a hold that this master did not grant may have a smaller number, and is
-- then not restored here.
local function has_hold(mark, mode, value, number)
  if not mark or has(mark, value) then
    return mark
  end
  local _, tab = string.find(mark, '\n' .. mode .. '\t', 1, true)
  local last = tab and string.match(mark, '^(%d+)\n', tab + 1)
  return last and tonumber(number) <= tonumber(last)
end
