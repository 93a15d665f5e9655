-- What is said of one lock by `of(..)`: its error where it ends with one, or 5 where what stands beside it is none of
-- ours.
local odd = false
local function each(of, ...)
  local _, one = pcall(of, ...)
  local why = type(one) == 'table' and one.err or one
  if string.find(why, 'ERR quorate: ', 1, true) or string.find(why, 'WRONGTYPE', 1, true) == 1 then
    return '5'
  elseif #why > 1 then
    odd = true
    return {err = why}
  end
  return one
end
