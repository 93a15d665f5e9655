-- The value under the lock `key`, `NUMBER RUN BYTES` as text, and the number under which it was written; 0
-- where there is none. A string of somebody else's is left alone, as another type of value is.
local value = '{value}' .. key
local text, number = call('GET', value), 0
if text then
  number = tonumber(string.match(text, '^([1-9]%d*) %S+ '))
  if not number or number >= 9007199254740992 then
    return redis.error_reply('ERR quorate: ' .. value .. ' holds no value of a lock: left alone')
  end
end
