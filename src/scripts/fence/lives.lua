-- Sets `fence_lives`: the expiry in ms of a counter with the value `v`. The expiry is FENCE_TTL, plus the time by which
-- `v` is ahead of `now` (this master's time in us). With FENCE_TTL alone, a number from a clock that was ahead would
-- expire before the other clocks reach it, and the next number would be smaller. If `v` is at most a second ahead,
-- nothing is added, so that an unchanged proposal needs no arithmetic.
local fence_lives = FENCE_TTL
if v > now + 1000000 then
  fence_lives = string.format('%.0f', FENCE_TTL + (v - now) / 1000)
end
