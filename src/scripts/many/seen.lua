-- Reads all keys in `names` into `seen`: a string, or nothing if the key is missing or has another type.
local seen = redis.pcall('MGET', unpack(names))
if seen.err then
  -- The user lacks the right to run MGET or to read one of the keys. Read the keys one by one.
  seen = {}
  for i, name in ipairs(names) do
    local found = redis.pcall('GET', name)
    seen[i] = type(found) == 'string' and found
  end
end
