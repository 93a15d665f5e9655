-- Reads the fencing counter of the lock `key`. If the counter is 2^53 or more, ends the script with an error: a double
-- cannot represent every integer from there on, so two holders could get the same number.
local fence = '{fence}' .. key
local counter = tonumber(call('GET', fence) or 0)
if not counter or counter < 0 or counter >= 9007199254740992 or counter % 1 ~= 0 then
  return redis.error_reply('ERR quorate: ' .. fence ..
    ' holds no number to count on (below 2^53): delete it while nobody holds the lock')
end
