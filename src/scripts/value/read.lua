-- Reads the value under the lock `key`, stored as `NUMBER RUN BYTES`: the writer's fencing number, the id of the server
-- run, and the bytes.
-- Sets `text` to the stored text, and `number` to the fencing number (0 if there is no value).
-- Fails if the key has other content or another type.
local value = '{value}' .. key
local text, number = call('GET', value), 0
if text then
  number = tonumber(string.match(text, '^([1-9]%d*) %S+ '))
  if not number or number >= 9007199254740992 then
    return redis.error_reply('ERR quorate: ' .. value .. ' was not written by quorate and is not changed')
  end
end
