-- KEEP (docs/protocol.md, "Several resources, readers, owners, semaphores"): EXTEND for several locks, some of which
-- readers or an owner share. Never shortens a hold. Restores a missing hold, unless an operator has force-released it.
-- KEYS: lock keys. ARGV: for each key:
-- - the value of the hold
-- - ttl ms, or 0 if the request was withdrawn: change nothing
-- - 'x' (exclusive) or the marker of the readers or the owner
-- - the fencing number
-- Reply: one digit per key (0, 1, 2, 3 or 5), or an array if a key failed. extend.lua explains both.
local said = {}
--+ mark/has.lua
--+ mark/class.lua
--+ many/call.lua
--+ many/each.lua
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local function keep(key, value, ttl, mode, number)
  local held = redis.pcall('GET', key)
  if type(held) == 'table' then
    if string.sub(held.err, 1, 9) == 'WRONGTYPE' then
      return '0'
    end
    -- GET failed because the client's user lacks the right to read the key. Fail with the same error: `call` raises it.
    -- Do not return 0 (not ours), because the client may still hold the lock.
    held = call('GET', key)
  end
  local ours = mode == 'x' and value or mode
  if held and held ~= ours then
    return '0'
  end
  local holds, known = '{holds}' .. key, mode == 'x' and held
  if held and mode ~= 'x' then
    known = call('ZSCORE', holds, value)
  end
  -- Check the break record even if the lock key exists: other readers, or the owner, may have taken the lock after a
  -- force-release, or a delayed acquire of a force-released hold may have taken it again. If the record is not readable,
  -- a hold that is not missing is renewed.
  local mark
  if known then
    mark = redis.pcall('GET', '{broken}' .. key)
  else
    mark = call('GET', '{broken}' .. key)
  end
  if type(mark) == 'string' and (has(mark, value) or not known and mode ~= 'x' and has_hold(mark, mode, value, number)) then
    return '0'
  end
  if mode == 'x' then
    if not held then
      call('SET', key, value, 'PX', ttl)
      return '2'
    elseif call('PTTL', key) < tonumber(ttl) then
      call('PEXPIRE', key, ttl)
    end
    return '1'
  end
  --+ fence/read.lua
  local owned, v, text = mode ~= '{shared}', tonumber(number), number
  if owned and counter > v then
    -- All holds of an owner have the fencing number that is the lock's counter. If the counter is now larger, another
    -- client has held the lock since, so this hold has ended.
    return '0'
  end
  if held then
    -- When a server is out of memory, it can refuse only the first write of a script. So begin with a write that it
    -- never refuses: the expiry, even if unchanged.
    local left = call('PTTL', key)
    call('PEXPIRE', key, math.max(left, tonumber(ttl)))
  end
  if not known and counter > v and not held then
    -- Other clients have held the lock since, with larger numbers. The restored hold gets the next number.
    v, text = counter + 1, nil
  end
  if counter < v then
    local now = time[1] * 1000000 + time[2]
    --+ fence/lives.lua
    call('SET', fence, text or string.format('%.0f', v), 'PX', fence_lives)
  end
  if not held then
    call('SET', key, mode, 'PX', ttl)
    call('DEL', holds)
  end
  local until_ms = math.max(tonumber(known or 0), ms + tonumber(ttl))
  call('ZADD', holds, string.format('%.0f', until_ms), value)
  local lives = call('PTTL', key)
  call('PEXPIRE', holds, lives)
  return known and '1' or '2'
end
for i, key in ipairs(KEYS) do
  local at = 4 * i
  local value, ttl, mode, number = ARGV[at - 3], ARGV[at - 2], ARGV[at - 1], ARGV[at]
  said[i] = ttl == '0' and '3' or each(keep, key, value, ttl, mode, number)
end
return odd and said or table.concat(said)
