-- The lock has just been taken: raise its counter. Needs `time`.
--+ fence/next.lua
--+ fence/lives.lua
call('SET', fence, text or string.format('%.0f', v), 'PX', fence_lives)
return v
