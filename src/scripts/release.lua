-- RELEASE (protocol, section 3): compare and delete.
-- KEYS: lock. ARGV: value, and 1 where a note was written. Reply: 1 (deleted), 0 (it was not ours).
local key = KEYS[1]
if redis.call('GET', key) == ARGV[1] then
  if ARGV[2] == '1' and type(redis.pcall('GET', '{note}' .. key)) == 'string' then
    redis.pcall('DEL', '{note}' .. key)
  end
  return redis.call('DEL', key)
end
return 0
