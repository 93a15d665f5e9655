-- The lock has been taken: its counter moves with it. `time` has been read.
--+ fence/next.lua
call('SET', fence, text or string.format('%.0f', v), 'PX', FENCE_TTL)
return v
