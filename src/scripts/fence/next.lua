-- Sets `v` to the next fencing counter of a lock that is being taken: the proposal, limited to a second before or after
-- this master's time, but always larger than the old counter. Sets `text` to the proposal if `v` equals it, otherwise
-- to nil. Needs `time`, the reply of TIME.
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
