-- The lock has just been taken: raise its counter. Needs `time`.
-- A counter expires at least a day after the end of the period of 1,000 s to which its number belongs, because the
-- first number of a period sets the expiry to FENCE_TTL. Later numbers of the same period keep this expiry, because
-- setting an expiry takes nearly half of the time of a SET.
--+ fence/next.lua
if counter >= v - v % 1000000000 then
  call('SET', fence, text or string.format('%.0f', v), 'KEEPTTL')
else
  --+ fence/lives.lua
  call('SET', fence, text or string.format('%.0f', v), 'PX', fence_lives)
end
return v
