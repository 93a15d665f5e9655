-- LOOK: the lock as it stands. KEYS: lock, fence counter.
-- Reply: {value or nil, ttl left ms, counter or nil}.
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[2])}
