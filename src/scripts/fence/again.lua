-- The lock is ours already, with the counter as it stands: where that is gone there is no number to give.
return counter > 0 and counter or redis.error_reply('ERR quorate: ' .. fence .. ' is gone')
