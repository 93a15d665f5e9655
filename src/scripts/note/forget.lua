-- Deletes the note of the lock `key`. A key of another type is not deleted.
if type(redis.pcall('GET', '{note}' .. key)) == 'string' then
  redis.pcall('DEL', '{note}' .. key)
end
