-- NOTE: what the holders of many locks tell those who look. Only the holder writes, while its lock lives,
-- and in front of the note stands whose it is: it is kept for longer than the lock, and shown for nobody else. A value of another type is never touched.
-- KEYS: locks. ARGV: value and note of each, and 1 to announce it; a note of '' means withdrawn.
-- Reply: one digit a lock: 1 (written), 0 (not).
local call, said = redis.call, {}
for i, key in ipairs(KEYS) do
  local value, text = ARGV[3 * i - 2], ARGV[3 * i - 1]
  said[i] = '0'
  if text ~= '' and redis.pcall('GET', key) == value then
    local left = call('PTTL', key)
    local note = '{note}' .. key
    if left > 0 and type(redis.pcall('GET', note)) ~= 'table' then
      call('SET', note, value .. ' ' .. text, 'PX', left * NOTE_LIVES)
      said[i] = '1'
    end
    if ARGV[3 * i] == '1' then
      -- A hint only.
      redis.pcall('PUBLISH', '{leader}' .. key, key)
    end
  end
end
return table.concat(said)
