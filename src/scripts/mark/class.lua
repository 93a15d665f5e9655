-- Whether a break ended the hold `value` of the class `mode` with the number `number`. `mark` is the text of the break
-- marker. The hold was ended if the marker names its value, or if its number is not above the counter at the last break
-- of this class. Later holds have larger numbers. The exception is a hold that this master did not grant: it counts as
-- ended, and is not restored here.
local function has_hold(mark, mode, value, number)
  if not mark or has(mark, value) then
    return mark
  end
  local _, tab = string.find(mark, '\n' .. mode .. '\t', 1, true)
  local last = tab and string.match(mark, '^(%d+)\n', tab + 1)
  return last and tonumber(number) <= tonumber(last)
end
