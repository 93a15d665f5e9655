-- The note of the lock `key` goes with it. What is of another type stays.
if type(redis.pcall('GET', '{note}' .. key)) == 'string' then
  redis.pcall('DEL', '{note}' .. key)
end
