-- This attempt already holds the lock: return its counter. If the counter is gone, there is no fencing number to
-- return.
return counter > 0 and counter or redis.error_reply('ERR quorate: ' .. fence .. ' is gone')
