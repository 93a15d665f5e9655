-- Whether the hold `value` of the class `mode`, with that `number`, was broken by what the `mark` tells of: it was here, or
-- there were holds of this class then, and none that came later has a number that is not above the counter of that time.
local function has_hold(mark, mode, value, number)
  if not mark or has(mark, value) then
    return mark
  end
  local _, tab = string.find(mark, '\n' .. mode .. '\t', 1, true)
  local last = tab and string.match(mark, '^(%d+)\n', tab + 1)
  return last and tonumber(number) <= tonumber(last)
end
