-- Raises the generation marker, and never lowers it (docs/protocol.md, "Replacing masters").
-- KEYS: the generation marker. ARGV: the marker's number, the fingerprint of the masters, and the expiry in ms. A space
-- and the fingerprint of the name follow the fingerprint of the masters, if the masters have a name. The expiry is 0
-- (never expires), unless the marker replaces a lost one.
-- Reply: the marker that the key has now.
local mark = redis.call('GET', KEYS[1])
local raised = ARGV[1] .. ' ' .. ARGV[2]
if not mark then
  if ARGV[3] == '0' then
    redis.call('SET', KEYS[1], raised)
  else
    redis.call('SET', KEYS[1], raised, 'PX', ARGV[3])
  end
  return raised
end
if mark == raised and ARGV[3] == '0' then
  -- A client may have written the same marker with an expiry, to restore a lost one. Remove the expiry.
  redis.call('SET', KEYS[1], raised)
  return raised
end
local number = string.match(mark, '^(%d+) %x+$') or string.match(mark, '^(%d+) %x+ %x+$')
local named = mark == string.match(raised, '^(%d+ %x+) %x+$')
if not number or (tonumber(number) >= tonumber(ARGV[1]) and not named) then
  return mark
end
-- Keep the expiry of a restored marker: it shows how long ago the marker was restored.
redis.call('SET', KEYS[1], raised, 'KEEPTTL')
return raised
