-- CLASSIC ACQUIRE as a script, for clients that must check the generation marker in the same step (docs/protocol.md,
-- "Replacing masters"). All other clients send SET directly.
-- KEYS: lock. ARGV: value, ttl ms.
-- Reply: OK (granted), or nil.
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
