-- Reads the fencing counter of the lock `key`. Fails if the counter is not an integer below 2^53: a Lua number cannot
-- represent all larger integers, so two holders could get the same number.
local fence = '{fence}' .. key
local counter = tonumber(call('GET', fence) or 0)
if not counter or counter < 0 or counter >= 9007199254740992 or counter % 1 ~= 0 then
  return redis.error_reply('ERR quorate: ' .. fence ..
    ' holds no number to count on (below 2^53): delete it while nobody holds the lock')
end
