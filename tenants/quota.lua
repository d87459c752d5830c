-- What a tenant has used, and what is held for its running requests. One verb runs at a time: atomic.
-- All keys carry the tenant in braces, so that they live on one node of a cluster.
--
--   window   zset  request id -> admission, ms      requests of the last 60 s
--   tokens   hash  request id -> tokens             of the same requests
--   sums     hash  "tokens": sum over `tokens`; "reserved:<month>", "spent:<month>": nano-units;
--                  "generation": names this store's life, gone when the store was emptied
--   holds    zset  request id -> expiry, ms         running requests
--   costs    hash  request id -> "<month>:<nanos>"  of the same requests
--   expired  hash  request id -> 1                  holds that ran out before they were settled
--   recent   zset  "<id>:<month>:<nanos>" -> ms     settled lately, perhaps not yet in the ledger
--   booked   set   request id                       in `spent` already, whatever comes later
local window, tokens, sums, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local costs, expired, recent, booked = KEYS[5], KEYS[6], KEYS[7], KEYS[8]

local WINDOW_MS = 60000
local RECENT_MS = 60000
local DAY_MS = 86400000
-- How far a refused request looks for the moment at which its tokens would fit.
local MAX_LOOKAHEAD = 512

local function int(number) return string.format('%.0f', number) end
local function sum(field) return tonumber(redis.call('HGET', sums, field) or '0') end
local function add(field, number)
  -- HINCRBY takes no "-0".
  if number ~= 0 then redis.call('HINCRBY', sums, field, int(number)) end
end

-- Milliseconds. The store's own clock unless a caller gives one (tests of window borders do).
local function clock(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function drop_from_window(id)
  redis.call('ZREM', window, id)
  add('tokens', -tonumber(redis.call('HGET', tokens, id) or '0'))
  redis.call('HDEL', tokens, id)
end

local function trim_window(now)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', window, '-inf', now - WINDOW_MS)) do
    drop_from_window(id)
  end
  -- A clock set back must not make a minute last an hour.
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', window, '(' .. int(now), '+inf')) do
    redis.call('ZADD', window, int(now), id)
  end
  if redis.call('EXISTS', window) == 0 then
    redis.call('DEL', tokens)
    redis.call('HSET', sums, 'tokens', 0)
  end
end

-- True if there was a hold.
local function free_hold(id)
  redis.call('ZREM', holds, id)
  local cost = redis.call('HGET', costs, id)
  if not cost then return false end
  redis.call('HDEL', costs, id)
  local month, nanos = string.match(cost, '^([^:]*):(.*)$')
  add('reserved:' .. month, -tonumber(nanos))
  if sum('reserved:' .. month) == 0 then redis.call('HDEL', sums, 'reserved:' .. month) end
  return true
end

local function sweep_holds(now)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', holds, '-inf', now, 'LIMIT', 0, 1000)) do
    free_hold(id)
    redis.call('HSET', expired, id, 1)
    redis.call('PEXPIRE', expired, DAY_MS)
  end
end

local function age_at(rank, now)
  local entry = redis.call('ZRANGE', window, rank, rank, 'WITHSCORES')
  return entry[2] and tonumber(entry[2]) + WINDOW_MS - now or 0
end

-- Until the window has room for `wanted` tokens beside what stays in it.
local function wait_for_tokens(wanted, limit, now)
  local excess = sum('tokens') + wanted - limit
  local wait = WINDOW_MS
  local entries = redis.call('ZRANGE', window, 0, MAX_LOOKAHEAD - 1, 'WITHSCORES')
  for i = 1, #entries, 2 do
    wait = tonumber(entries[i + 1]) + WINDOW_MS - now
    excess = excess - tonumber(redis.call('HGET', tokens, entries[i]) or '0')
    if excess <= 0 then break end
  end
  return wait
end

local function answer(id, status, used, wait, now)
  return {
    id, status, int(used), int(wait), redis.call('HGET', sums, 'generation'),
    redis.call('ZCARD', window), int(sum('tokens')), int(age_at(-1, now)),
  }
end

-- Which limit refuses: its name, what is used of it, how long to wait in ms; nil if none does.
local function refusal(now, month, num_tokens, cost, rpm, tpm, max_holds, budget)
  if tpm and num_tokens > tpm then return 'too_large', sum('tokens'), 0 end
  if budget then
    local spent, reserved = sum('spent:' .. month), sum('reserved:' .. month)
    if spent + cost > budget or spent >= budget then return 'budget', spent, 0 end
    if spent + reserved + cost > budget then return 'budget_held', spent + reserved, 1000 end
  end
  local num_requests = redis.call('ZCARD', window)
  if rpm and num_requests >= rpm then
    local wait = age_at(num_requests - rpm, now)
    return 'requests', num_requests, wait > 0 and wait or WINDOW_MS
  end
  if tpm and sum('tokens') + num_tokens > tpm then
    return 'tokens', sum('tokens'), wait_for_tokens(num_tokens, tpm, now)
  end
  local num_holds = redis.call('ZCARD', holds)
  if max_holds and num_holds >= max_holds then return 'concurrency', num_holds, 1000 end
end

local verbs = {}

-- id, now, month, tokens, cost, rpm, tpm, max holds, budget ('' is no limit), hold ms, a new generation
function verbs.reserve(id, now, month, num_tokens, cost, rpm, tpm, max_holds, budget, hold_ms, fresh)
  if redis.call('HEXISTS', sums, 'generation') == 0 then
    redis.call('DEL', window, tokens, sums, holds, costs, expired)
    redis.call('HSET', sums, 'generation', fresh)
  end
  trim_window(now)
  sweep_holds(now)
  if redis.call('ZSCORE', holds, id) then return answer(id, 'ok', 0, 0, now) end
  if budget ~= '' and redis.call('HEXISTS', sums, 'spent:' .. month) == 0 then
    return answer(id, 'rebuild', 0, 0, now)
  end
  num_tokens, cost = tonumber(num_tokens), tonumber(cost)
  local name, used, wait = refusal(now, month, num_tokens, cost,
    tonumber(rpm), tonumber(tpm), tonumber(max_holds), tonumber(budget))
  if name then return answer(id, name, used, wait, now) end
  redis.call('ZADD', window, int(now), id)
  redis.call('HSET', tokens, id, int(num_tokens))
  add('tokens', num_tokens)
  redis.call('PEXPIRE', window, 2 * WINDOW_MS)
  redis.call('PEXPIRE', tokens, 2 * WINDOW_MS)
  redis.call('ZADD', holds, int(now + hold_ms), id)
  redis.call('HSET', costs, id, month .. ':' .. int(cost))
  add('reserved:' .. month, cost)
  return answer(id, 'ok', 0, 0, now)
end

local function book(id, now, month, cost, has_budget)
  if redis.call('SISMEMBER', booked, id) == 1 then return end
  if redis.call('HEXISTS', sums, 'spent:' .. month) == 1 then add('spent:' .. month, cost) end
  if has_budget == '1' then
    redis.call('ZADD', recent, int(now), id .. ':' .. month .. ':' .. int(cost))
    redis.call('ZREMRANGEBYSCORE', recent, '-inf', now - RECENT_MS)
    redis.call('PEXPIRE', recent, DAY_MS)
  end
end

-- id, now, generation, month, tokens, cost ('' is unknown: ask the ledger again), "1" if there is a
-- budget, "1" if the request itself is given back. Answers {id, 1}, or {id, 0} if it was settled before.
function verbs.settle(id, now, generation, month, num_tokens, cost, has_budget, is_refund)
  local is_emptied = redis.call('HGET', sums, 'generation') ~= generation
  local is_open = free_hold(id) or redis.call('HDEL', expired, id) == 1
  if not is_open and not is_emptied then return {id, 0} end
  if redis.call('ZSCORE', window, id) then
    if is_refund == '1' then
      drop_from_window(id)
    else
      add('tokens', num_tokens - tonumber(redis.call('HGET', tokens, id)))
      redis.call('HSET', tokens, id, int(num_tokens))
    end
  end
  if cost == '' then
    redis.call('HDEL', sums, 'spent:' .. month)
  else
    book(id, now, month, tonumber(cost), has_budget)
  end
  if is_emptied then
    redis.call('SADD', booked, id)
    redis.call('PEXPIRE', booked, DAY_MS)
  end
  return {id, 1}
end

-- name, now, hold ms, ids between spaces: those requests still run.
function verbs.refresh(name, now, hold_ms, ids)
  for id in string.gmatch(ids, '%S+') do
    if redis.call('ZSCORE', holds, id) then redis.call('ZADD', holds, int(now + hold_ms), id) end
  end
  return {name, 1}
end

-- name, now, month, nanos in the ledger, ids between spaces: rows of it that closed lately.
function verbs.rebuild(name, now, month, spent, ids)
  if redis.call('HEXISTS', sums, 'spent:' .. month) == 1 then return {name, 0} end
  local in_ledger = {}
  for id in string.gmatch(ids, '%S+') do
    in_ledger[id] = true
    redis.call('SADD', booked, id)
    redis.call('PEXPIRE', booked, DAY_MS)
  end
  local total = tonumber(spent)
  redis.call('ZREMRANGEBYSCORE', recent, '-inf', now - RECENT_MS)
  for _, entry in ipairs(redis.call('ZRANGE', recent, 0, -1)) do
    local id, of_month, nanos = string.match(entry, '^(.*):([^:]*):([^:]*)$')
    if of_month == month and not in_ledger[id] then total = total + tonumber(nanos) end
  end
  for _, field in ipairs(redis.call('HKEYS', sums)) do
    if string.sub(field, 1, 6) == 'spent:' then redis.call('HDEL', sums, field) end
  end
  redis.call('HSET', sums, 'spent:' .. month, int(total))
  return {name, 1}
end

local now = clock(ARGV[3])
return verbs[ARGV[1]](ARGV[2], now, unpack(ARGV, 4))
