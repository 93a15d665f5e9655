-- Whether a force-release ended the hold `value` of the class `mode` (readers, or an owner) with the number `number`.
-- `mark` is the text of the marker of force-releases. The hold was ended if the marker names its value, or if its
-- number is not above the counter at the last force-release of this class. Later holds have larger numbers. A hold that
-- this master did not grant may have a smaller one: it then counts as ended, and is not restored here.
local function has_hold(mark, mode, value, number)
  if not mark or has(mark, value) then
    return mark
  end
  local _, tab = string.find(mark, '\n' .. mode .. '\t', 1, true)
  local last = tab and string.match(mark, '^(%d+)\n', tab + 1)
  return last and tonumber(number) <= tonumber(last)
end
