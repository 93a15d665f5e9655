-- What stands under all `names`: a text, or nothing, or something of another type, which looks like nothing.
local seen = redis.pcall('MGET', unpack(names))
if seen.err then
  -- A user who may not ask for many at once, or not for one of these.
  seen = {}
  for i, name in ipairs(names) do
    local found = redis.pcall('GET', name)
    seen[i] = type(found) == 'string' and found
  end
end
