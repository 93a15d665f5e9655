-- The expiry, in ms, of a counter that is set to `v`: a day, and as much longer as `v` is ahead of `now`, this master's time in
-- us. With a day alone the number that a wrong clock has left would be forgotten while the clocks still show less than it.
-- Up to a second ahead makes no difference, so that a proposal that is taken as it came costs no arithmetic.
local fence_lives = FENCE_TTL
if v > now + 1000000 then
  fence_lives = string.format('%.0f', FENCE_TTL + (v - now) / 1000)
end
