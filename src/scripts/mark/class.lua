-- Whether a force-release ended a hold of readers or of an owner.
-- - `mark`: the text of the break record
-- - `mode`: the marker of the readers or the owner
-- - `value` and `number`: the value and the fencing number of the hold
-- The hold was ended if `mark` names `value`, or if `number` is at most the counter in the line of `mark` for `mode`. A
-- hold that other masters granted after the force-release can also have such a small number. This master does not
-- restore it either.
local function has_hold(mark, mode, value, number)
  if not mark or has(mark, value) then
    return mark
  end
  local _, tab = string.find(mark, '\n' .. mode .. '\t', 1, true)
  local last = tab and string.match(mark, '^(%d+)\n', tab + 1)
  return last and tonumber(number) <= tonumber(last)
end
