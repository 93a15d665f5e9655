-- RELEASE (docs/protocol.md, "Release"): deletes the lock if it is ours.
-- KEYS: lock. ARGV: value, and 1 if a note was written. Reply: 1 (deleted), 0 (the lock was not ours).
local key = KEYS[1]
if redis.call('GET', key) == ARGV[1] then
  if ARGV[2] == '1' then
    --+ note/forget.lua
  end
  return redis.call('DEL', key)
end
return 0
