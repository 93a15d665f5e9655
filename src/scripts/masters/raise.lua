-- Raises the mark of the masters, and never lowers it (protocol, masters that change).
-- KEYS: the mark. ARGV: number, fingerprint, the lifetime in milliseconds of a mark that was lost; 0 where the masters are
-- marked for the first time.
-- Reply: what stands there now.
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
  -- A client took this master for one that has lost its mark, while the others were being marked.
  redis.call('SET', KEYS[1], raised)
  return raised
end
local number = string.match(mark, '^(%d+) %x+$')
if not number or tonumber(number) >= tonumber(ARGV[1]) then
  return mark
end
-- Since when a lost mark is there again stays what it was.
redis.call('SET', KEYS[1], raised, 'KEEPTTL')
return raised
