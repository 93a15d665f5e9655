-- The lock has been taken: its counter moves with it. `time` has been read.
--+ fence/next.lua
--+ fence/lives.lua
call('SET', fence, text or string.format('%.0f', v), 'PX', fence_lives)
return v
