-- RELEASE (protocol, section 3): compare and delete.
-- KEYS: lock. ARGV: value. Reply: 1 (deleted), 0 (it was not ours).
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
