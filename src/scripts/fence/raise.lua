-- Raises the fencing counter of a lock that has just been taken. Needs `time`, the reply of TIME.
-- To save time, only the first counter of each period of 1,000 s sets the expiry. FENCE_TTL is a day plus the length of
-- this period, so each counter lasts at least a day.
--+ fence/next.lua
if counter >= v - v % 1000000000 then
  call('SET', fence, text or string.format('%.0f', v), 'KEEPTTL')
else
  --+ fence/lives.lua
  call('SET', fence, text or string.format('%.0f', v), 'PX', fence_lives)
end
return v
