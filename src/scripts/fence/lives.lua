-- Sets `fence_lives`, the expiry in ms of a counter with the value `v`. If `v` is more than a second ahead of `now`
-- (this master's time in us), the expiry is longer by `v - now`. Otherwise the counter could expire before the clocks
-- reach `v`, and the next counter could be smaller.
local fence_lives = FENCE_TTL
if v > now + 1000000 then
  fence_lives = string.format('%.0f', FENCE_TTL + (v - now) / 1000)
end
