-- The reply of `of(..)` for one lock. An error becomes the reply, so that the other locks of the call are still answered; 5
-- where a key that belongs to this lock holds something that is not ours.
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
