-- The fencing counter of the lock `key`. A number that a double does not hold to the last digit would
-- be given to two holders, so then nothing is granted here.
local fence = '{fence}' .. key
local counter = tonumber(call('GET', fence) or 0)
if not counter or counter < 0 or counter >= 9007199254740992 or counter % 1 ~= 0 then
  return redis.error_reply('ERR quorate: ' .. fence ..
    ' holds no number to count on (below 2^53): delete it while nobody holds the lock')
end
