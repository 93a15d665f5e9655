-- CLASSIC ACQUIRE: SET as a script, so that one script checks the generation marker and takes the lock
-- (docs/protocol.md, "Replacing masters"). Clients that check no marker send SET directly.
-- KEYS: lock. ARGV: value, ttl ms.
-- Reply: OK (granted), or nil.
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
