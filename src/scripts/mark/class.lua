-- Whether a force-release ended the hold with the value `value` and the fencing number `number`. `mode` is the marker
-- of the readers or of the owner that share the lock. `mark` is the text of the break record. The hold was ended if the
-- text names its value, or if its number is not above the counter at the last force-release of these readers or this
-- owner. Later holds have larger numbers. A hold that this master did not grant may have a smaller number: the master
-- then treats it as ended, and does not restore it.
local function has_hold(mark, mode, value, number)
  if not mark or has(mark, value) then
    return mark
  end
  local _, tab = string.find(mark, '\n' .. mode .. '\t', 1, true)
  local last = tab and string.match(mark, '^(%d+)\n', tab + 1)
  return last and tonumber(number) <= tonumber(last)
end
