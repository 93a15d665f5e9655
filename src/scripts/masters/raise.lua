-- Raises the mark of the masters, and never lowers it (protocol, masters that change).
-- KEYS: the mark. ARGV: number, fingerprint.
-- Reply: what stands there now.
local mark = redis.call('GET', KEYS[1])
if mark then
  local number = string.match(mark, '^(%d+) %x+$')
  if not number or tonumber(number) >= tonumber(ARGV[1]) then
    return mark
  end
end
mark = ARGV[1] .. ' ' .. ARGV[2]
redis.call('SET', KEYS[1], mark)
return mark
