-- Whether a break ended the hold `value` of the class `mode` with the number `number`. `mark` is the text that breaks leave.
-- Either it names the value, or the number is not above the counter at the last break of this class. Later holds have
-- larger numbers, except a hold that this master did not grant, which is not restored here.
local function has_hold(mark, mode, value, number)
  if not mark or has(mark, value) then
    return mark
  end
  local _, tab = string.find(mark, '\n' .. mode .. '\t', 1, true)
  local last = tab and string.match(mark, '^(%d+)\n', tab + 1)
  return last and tonumber(number) <= tonumber(last)
end
