-- Raises the generation marker, and never lowers it (docs/protocol.md, "Replacing masters").
-- KEYS: the generation marker. ARGV: the marker's number, the fingerprint of the masters, and the age record. A space
-- and the fingerprint of the name follow the fingerprint of the masters, if the masters have a name.
-- The age record is written only together with a marker that the master did not have.
-- Reply: the marker that the key has now.
local mark = redis.call('GET', KEYS[1])
local raised = ARGV[1] .. ' ' .. ARGV[2]
if not mark then
  -- Write the age record before the marker: a server with a marker and an old record would vote too early.
  redis.call('SET', '{age}', ARGV[3])
else
  local number = string.match(mark, '^(%d+) %x+$') or string.match(mark, '^(%d+) %x+ %x+$')
  local named = mark == string.match(raised, '^(%d+ %x+) %x+$')
  if not number or (tonumber(number) >= tonumber(ARGV[1]) and not named) then
    return mark
  end
end
redis.call('SET', KEYS[1], raised)
return raised
