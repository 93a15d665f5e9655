-- This attempt holds the lock already: return its counter. If the counter is gone, return an error, because there is no
-- fencing number to return.
return counter > 0 and counter or redis.error_reply('ERR quorate: ' .. fence .. ' is gone')
