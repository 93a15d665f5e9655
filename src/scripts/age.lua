-- AGE: raises the age record of the server. Restores a lost generation marker, and then starts a new age record
-- (docs/protocol.md, "Age records").
-- KEYS: none. ARGV: run id, life, age ms, new life, marker.
-- `life` names the age record that the client has watched; empty if the client has found no age record of this run.
-- `marker` is the marker to restore if there is none; empty if the client must not restore it.
-- Reply: the age record; empty if the server has no generation marker.
local lost = not redis.call('GET', '{masters}')
if lost and ARGV[5] == '' then
  return ''
end
-- Overwrite a value of another type. For every other error, the SET below fails with the same error.
local record = redis.pcall('GET', '{age}')
if type(record) ~= 'string' then
  record = ''
end
local run, age, life = string.match(record, '^(%S+) (%d+) (%S+)$')
if lost then
  -- The server has lost its memory in this run. A client that has counted before must not raise this record.
  record = ARGV[1] .. ' 0 lost-' .. ARGV[4]
elseif run ~= ARGV[1] then
  record = ARGV[1] .. ' ' .. (ARGV[2] == '' and ARGV[3] or '0') .. ' ' .. ARGV[4]
elseif life == ARGV[2] and tonumber(age) < tonumber(ARGV[3]) then
  record = run .. ' ' .. ARGV[3] .. ' ' .. life
else
  return record
end
-- Write the age record before the marker: a server with a marker and an old record would vote too early.
redis.call('SET', '{age}', record)
if lost then
  redis.call('SET', '{masters}', ARGV[5])
end
return record
