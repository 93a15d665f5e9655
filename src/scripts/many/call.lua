-- Like redis.call, for scripts that go on with the other locks after an error of one lock. The error contains the line
-- of the call, in the form in which the server adds the line to an error that ends a script.
local function call(...)
  local said = redis.pcall(...)
  local why = type(said) == 'table' and said.err
  if why then
    local _, place = pcall(error, '', 3)
    why = string.gsub(why, '^@user_script: %d+: %-?', '')
    error({err = why .. ' script: on @user_script:' .. string.gsub(place, '%D', '') .. '.'})
  end
  return said
end
