-- NOTE: writes the notes of the holders of many locks.
-- - The note of a client is written only while this client holds the lock. The stored note begins with its value.
-- - A note may outlive its lock, but is shown only while the lock key has the same value.
-- - If readers or an owner share the lock, each hold has its own note.
-- - A key of another type is not changed.
-- KEYS: locks. ARGV: for each lock its value, its note ('' means that the request was withdrawn), and 1 to announce the
-- holder as the new leader of an election.
-- Reply: one digit per lock: 1 (written), 0 (not written).
local call, said = redis.call, {}
for i, key in ipairs(KEYS) do
  local value, text = ARGV[3 * i - 2], ARGV[3 * i - 1]
  said[i] = '0'
  local held = text ~= '' and redis.pcall('GET', key)
  local left, note = 0, '{note}' .. key
  if held == value then
    left = call('PTTL', key)
  elseif held == '{shared}' or type(held) == 'string' and string.sub(held, 1, #'{owner}') == '{owner}' then
    local deadline = redis.pcall('ZSCORE', '{holds}' .. key, value)
    if type(deadline) == 'string' then
      local time = call('TIME')
      left = deadline - time[1] * 1000 - math.floor(time[2] / 1000)
      note = '{of-hold}' .. value .. ':' .. key
    end
  end
  if left > 0 or held == value then
    if left > 0 and type(redis.pcall('GET', note)) ~= 'table' then
      -- If the server is out of memory, SET fails for this note. Go on with the notes of the other locks.
      local written = redis.pcall('SET', note, value .. ' ' .. text, 'PX', left * NOTE_LIVES)
      said[i] = written.ok and '1' or '0'
    end
    if ARGV[3 * i] == '1' then
      -- This announcement of a new leader is only a hint, so an error is ignored.
      redis.pcall('PUBLISH', '{leader}' .. key, key)
    end
  end
end
return table.concat(said)
