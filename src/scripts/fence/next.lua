-- Where the counter of a lock that is being taken moves: to the proposal, kept within a second of this
-- master's time and above where it stood; `text` where it is the proposal as it came. `time` has been read.
local now = time[1] * 1000000 + time[2]
local v, text = tonumber(ARGV[3]), ARGV[3]
if v > now + 1000000 then
  v, text = now + 1000000, nil
elseif v < now - 1000000 then
  v, text = now - 1000000, nil
end
if v <= counter then
  v, text = counter + 1, nil
end
