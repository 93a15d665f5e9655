-- Raises the generation marker, and never lowers it (docs/protocol.md, "Replacing masters").
-- KEYS: the generation marker. ARGV: the marker's number, the fingerprint of the masters, and the expiry in ms of a
-- marker that replaces a lost marker, or 0 when the masters get their first marker.
-- Reply: the marker that the key holds now.
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
  -- A client has restored this marker with an expiry, because it found markers on other masters already. But the
  -- masters are only now getting their first marker, so remove the expiry.
  redis.call('SET', KEYS[1], raised)
  return raised
end
local number = string.match(mark, '^(%d+) %x+$')
if not number or tonumber(number) >= tonumber(ARGV[1]) then
  return mark
end
-- KEEPTTL: the remaining expiry shows how long ago a lost marker was restored.
redis.call('SET', KEYS[1], raised, 'KEEPTTL')
return raised
