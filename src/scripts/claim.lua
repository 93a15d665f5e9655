-- CLAIM (docs/protocol.md, "Several resources, readers, owners, semaphores"): takes all keys of a request or none. Each
-- key is taken exclusively, or shared by readers or by the holds of one owner.
-- KEYS: lock keys. ARGV: value, ttl ms, proposed counter in microseconds, the value of the lock to replace
-- or '', the waiter's id or '', its ticket, its heartbeat ms, and for each key 'x' (exclusive) or the marker
-- of the readers or the owner.
-- Reply: the fencing number if all keys were granted, otherwise a list:
-- - ms until the lock may be free
-- - the number of waiters ahead
-- - the largest ticket
-- - the first 96 bytes of the holder's value, or ''
-- - the index of the key that is not free
-- - the holder's note, if it is readable
if tonumber(ARGV[2]) > MAX_TTL then
  return redis.error_reply('ERR quorate: ttl above max_ttl')
end
local call, value, ttl, instead, waiter = redis.call, ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[5]
local time = call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- Read every lock key and counter first. If one has a wrong type, the script fails before it changes anything.
local held, mine, most = {}, 0, 0
for i, key in ipairs(KEYS) do
  local mode = ARGV[7 + i]
  local holder = call('GET', key)
  --+ fence/read.lua
  most = math.max(most, counter)
  held[i] = holder
  if mode == 'x' then
    if holder == value then
      mine = mine + 1
    end
  elseif holder == mode then
    local deadline = call('ZSCORE', '{holds}' .. key, value)
    if deadline and tonumber(deadline) > ms then
      mine = mine + 1
    end
  end
end
local counter = most
if mine == #KEYS then
  if waiter ~= '' and instead == '' then
    -- The request shows that the waiter is alive: renew its place in the queue.
    for i, key in ipairs(KEYS) do
      local queue, alive, ticket = '{queue}' .. key, '{alive}' .. key, '{ticket}' .. key
      local id = ARGV[7 + i] == '{shared}' and waiter .. ':r' or waiter
      local number, beat = ARGV[6], tonumber(ARGV[7])
      --+ line/join.lua
    end
  end
  -- This claim holds all its keys already: return the counter unchanged.
  return counter > 0 and counter or redis.error_reply('ERR quorate: {fence}' .. KEYS[1] .. ' is gone')
end
local left, ahead, largest, way, holder, lined = 0, 0, 0, 0, '', {}
local joins, stands = true, waiter ~= '' and instead == ''
for i, key in ipairs(KEYS) do
  local mode, queue = ARGV[7 + i], '{queue}' .. key
  local id = mode == '{shared}' and waiter .. ':r' or waiter
  local blocked
  if stands or call('EXISTS', queue) == 1 then
    lined[i] = true
    local alive, ticket = '{alive}' .. key, '{ticket}' .. key
    if stands then
      local number, beat = ARGV[6], tonumber(ARGV[7])
      --+ line/join.lua
    end
    local clock = string.format('%.0f', ms)
    --+ line/purge.lua
    local rank
    if stands then
      rank = call('ZRANK', queue, id)
    else
      rank = call('ZCARD', queue)
    end
    ahead = math.max(ahead, rank)
    if (mode ~= 'x' and mode ~= '{shared}' and held[i] == mode)
      or (instead ~= '' and held[i] == instead) then
      -- This client already holds the lock (as its owner, or with the lock to replace), so it need not wait.
    elseif mode == '{shared}' then
      -- Readers wait only for a writer that is queued before them, not for other readers.
      for _, other in ipairs(rank > 0 and call('ZRANGE', queue, 0, rank - 1) or {}) do
        if string.sub(other, -2) ~= ':r' then
          blocked = other
          break
        end
      end
    elseif rank > 0 then
      blocked = call('ZRANGE', queue, 0, 0)[1]
    end
    if blocked then
      blocked = tonumber(call('ZSCORE', alive, blocked) or ms) - ms
    end
  end
  local free = not held[i] or held[i] == value or (mode ~= 'x' and held[i] == mode)
    or (instead ~= '' and held[i] == instead)
  if not free then
    blocked = call('PTTL', key)
  elseif instead ~= '' then
    --+ mark/has.lua
    if has(call('GET', '{broken}' .. key), instead) then
      -- The lock to replace was force-released: refuse, because another client may have held the lock since then.
      blocked = 0
    end
  end
  if blocked and way == 0 then
    left, way = blocked, i
    holder = held[i] or ''
  end
  joins = joins and mode ~= 'x' and held[i] == mode
end
if way > 0 then
  for _, key in ipairs(KEYS) do
    largest = math.max(largest, tonumber(call('GET', '{ticket}' .. key) or 0))
  end
  local note = redis.pcall('GET', '{note}' .. KEYS[way])
  return {left, ahead, largest, string.sub(holder, 1, 96), way, type(note) == 'string' and string.sub(note, 1, NOTE_SHOWN) or nil}
end
if joins and counter == 0 then
  -- The readers or the owner hold the lock, but its counter is gone, so there is no number to return. The next renewal
  -- of a hold restores the counter.
  return redis.error_reply('ERR quorate: {fence}' .. KEYS[1] .. ' is gone')
end
local number, written, kept = counter, nil, nil
if not joins then
  --+ fence/next.lua
  --+ fence/lives.lua
  number, written, kept = v, text or string.format('%.0f', v), fence_lives
end
for i, key in ipairs(KEYS) do
  local mode, holds = ARGV[7 + i], '{holds}' .. key
  if not joins then
    call('SET', '{fence}' .. key, written, 'PX', kept)
  end
  if mode == 'x' then
    call('SET', key, value, 'PX', ARGV[2])
  else
    local lives = ttl
    if held[i] ~= mode then
      -- The lock key does not hold this mode, so `holds` has only entries of holds that have expired.
      call('DEL', holds)
      call('SET', key, mode, 'PX', ARGV[2])
    else
      lives = math.max(call('PTTL', key), ttl)
      if lives == ttl then
        call('PEXPIRE', key, ARGV[2])
      end
      call('ZREMRANGEBYSCORE', holds, '-inf', string.format('%.0f', ms))
    end
    call('ZADD', holds, string.format('%.0f', ms + ttl), value)
    call('PEXPIRE', holds, lives)
    if held[i] and held[i] == instead then
      --+ note/forget.lua
      if waiter ~= '' then
        -- Remove this client's queue entry as a writer: the readers behind it may share the lock now.
        call('ZREM', '{queue}' .. key, waiter)
        call('ZREM', '{alive}' .. key, waiter)
      end
    end
    if lined[i] and held[i] ~= mode and mode == '{shared}' then
      -- This claim changed the lock to shared: wake the readers at the front of the queue, so that they join.
      --+ wake/readers.lua
    end
  end
end
return number
