-- Calls the function `of` for one lock, and returns the digit for this lock (extend.lua lists the digits). Returns 5 if
-- a key of the lock holds data that quorate did not write. After any other error, returns the error and sets `odd` to
-- true: the script then replies with an array.
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
