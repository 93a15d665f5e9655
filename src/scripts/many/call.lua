-- Like redis.call, but an error ends only the handling of one lock, not the script. The error text ends with the line
-- number of the call, as in Redis's own script errors.
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
