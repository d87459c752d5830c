-- Holds a request in all scopes, or in none. ARGV: tokens, nano-units, hold ms, a new generation, the
-- tenant's limits, the key's; limits are seven with commas between, '' where there is none, or '' alone.
-- Answers {id, status, scope's index, limit's name, used of it, wait in ms, generation}, and of each
-- scope its requests and tokens of the last minute and the ms until all of it is back.
local num_tokens, nanos, hold_ms = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

-- How long a spent budget keeps a request out, for comparison: longer than any window.
local DAY_RANK, MONTH_RANK, NEVER = DAY_MS, 31 * DAY_MS, 1e12
-- How far a refused request looks for the moment at which its tokens would fit.
local MAX_LOOKAHEAD = 512
local LIMITS = '^([^,]*),([^,]*),([^,]*),([^,]*),([^,]*),([^,]*),([^,]*)$'

local function begin(scope, generation)
  redis.call('DEL', scope.sums, scope.window)
  if scope.key == '' then redis.call('DEL', holds, held, expired) end
  redis.call('HSET', scope.sums, 'generation', generation)
  scopes[scope.key] = nil
  return scope_of(scope.key)
end

local function set_limits(scope, text)
  if text == '' then return end
  local rpm, tpm, running, month_nanos, day_nanos, day_tokens, month_tokens = string.match(text, LIMITS)
  scope.limits = {
    rpm = tonumber(rpm), tpm = tonumber(tpm), running = tonumber(running),
    month_nanos = tonumber(month_nanos), day_nanos = tonumber(day_nanos),
    day_tokens = tonumber(day_tokens), month_tokens = tonumber(month_tokens),
  }
  -- The last minute is kept where it is limited, from then on.
  scope.has_window = scope.limits.rpm or scope.limits.tpm
end

local function sweep()
  local late = redis.call('ZRANGEBYSCORE', holds, '-inf', now, 'LIMIT', 0, 1000)
  for _, one in ipairs(late) do
    local record = redis.call('HGET', held, one)
    redis.call('ZREM', holds, one)
    if record then
      local whose, _, _, tokens, cost = string.match(record, RECORD)
      free(living(whose), tonumber(tokens), tonumber(cost))
      redis.call('HDEL', held, one)
      redis.call('HSET', expired, one, record)
    end
  end
  if #late > 0 then redis.call('PEXPIRE', expired, DAY_MS) end
  -- A clock set back must not make a hold, or a minute, last an hour.
  local latest = now + hold_ms
  local ahead = redis.call('ZRANGEBYSCORE', holds, latest + 1, '+inf', 'LIMIT', 0, 1000)
  for _, one in ipairs(ahead) do redis.call('ZADD', holds, latest, one) end
end

local function tokens_of(member) return tonumber(string.match(member, ':(%d+)$')) end

local function trim(scope)
  local window, border = scope.window, now - WINDOW_MS
  local old = redis.call('ZRANGEBYSCORE', window, '-inf', border)
  if #old > 0 then
    for _, member in ipairs(old) do add(scope, 'tokens', -tokens_of(member)) end
    redis.call('ZREMRANGEBYSCORE', window, '-inf', border)
  end
  if scope.last and scope.last > now then
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', window, now, '+inf')) do
      redis.call('ZADD', window, now, member)
    end
    scope.last = now
  end
  scope.num_requests = redis.call('ZCARD', window)
  if scope.num_requests == 0 then scope.tokens = 0 end
end

-- Until the entry at this rank has left the window; `default` if there is none.
local function wait_for_rank(scope, rank, default)
  local entry = redis.call('ZRANGE', scope.window, rank, rank, 'WITHSCORES')
  return entry[2] and tonumber(entry[2]) + WINDOW_MS - now or default
end

-- Until the window has room for the request's tokens beside what stays in it.
local function wait_for_tokens(scope, limit)
  local excess, wait = scope.tokens + num_tokens - limit, WINDOW_MS
  local entries = redis.call('ZRANGE', scope.window, 0, MAX_LOOKAHEAD - 1, 'WITHSCORES')
  for i = 1, #entries, 2 do
    wait = tonumber(entries[i + 1]) + WINDOW_MS - now
    excess = excess - tokens_of(entries[i])
    if excess <= 0 then break end
  end
  return wait
end

-- Of all limits in the way the one that keeps the request out for longest.
local worst

local function refuse(scope, status, name, used, wait)
  if not worst or wait > worst.wait then
    worst = {scope = scope, status = status, name = name, used = used, wait = wait}
  end
end

local function check_budget(scope, limit, name, spent, holding, wanted, rank)
  if spent >= limit or spent + wanted > limit then
    refuse(scope, 'spent', name, spent, rank)
  elseif spent + holding + wanted > limit then
    refuse(scope, 'held', name, spent + holding, 1000)
  end
end

local function check_money(scope, limit, name, spent, rank)
  if limit then check_budget(scope, limit, name, spent, scope.held_nanos or 0, nanos, rank) end
end

local function check_tokens(scope, limit, name, spent, rank)
  if limit then check_budget(scope, limit, name, spent, scope.held_tokens or 0, num_tokens, rank) end
end

local function check_minute(scope, limits)
  local rpm, tpm, num_requests, tokens = limits.rpm, limits.tpm, scope.num_requests, scope.tokens or 0
  if rpm and num_requests >= rpm then
    local wait = wait_for_rank(scope, num_requests - rpm, WINDOW_MS)
    refuse(scope, 'full', 'requests_per_minute', num_requests, wait)
  end
  if tpm and num_tokens > tpm then
    refuse(scope, 'too_large', 'tokens_per_minute', tokens, NEVER)
  elseif tpm and tokens + num_tokens > tpm then
    refuse(scope, 'full', 'tokens_per_minute', tokens, wait_for_tokens(scope, tpm))
  end
  if limits.running and (scope.running or 0) >= limits.running then
    refuse(scope, 'full', 'max_concurrency', scope.running or 0, 1000)
  end
end

local function check(scope)
  local limits = scope.limits
  if not limits then return end
  check_money(scope, limits.month_nanos, 'monthly_budget_nanos', scope.month_nanos, MONTH_RANK)
  check_tokens(scope, limits.month_tokens, 'tokens_per_month', scope.month_tokens, MONTH_RANK)
  check_money(scope, limits.day_nanos, 'daily_budget_nanos', scope.day_nanos, DAY_RANK)
  check_tokens(scope, limits.day_tokens, 'tokens_per_day', scope.day_tokens, DAY_RANK)
  check_minute(scope, limits)
end

-- "<scope's index>:<period>" of the counters that limits need and nobody has counted yet.
local function uncounted(found)
  local missing = {}
  for i, scope in ipairs(found) do
    local limits = scope.limits or {}
    if (limits.month_nanos or limits.month_tokens) and not scope.month_nanos then
      missing[#missing + 1] = (i - 1) .. ':' .. month
    end
    if (limits.day_nanos or limits.day_tokens) and not scope.day_nanos then
      missing[#missing + 1] = (i - 1) .. ':' .. day
    end
  end
  return missing
end

local function enter_window(scope, member)
  if redis.call('ZADD', scope.window, now, member) == 1 then
    add(scope, 'tokens', num_tokens)
    scope.num_requests = scope.num_requests + 1
  end
  redis.call('PEXPIRE', scope.window, 2 * WINDOW_MS)
  scope.last = now
end

local function admit(found)
  local member = id .. ':' .. ARGV[6]
  for _, scope in ipairs(found) do
    if scope.has_window then enter_window(scope, member) end
    add(scope, 'running', 1)
    add(scope, 'held_tokens', num_tokens)
    add(scope, 'held_nanos', nanos)
  end
  redis.call('ZADD', holds, now + hold_ms, id)
  local record = {key, day, month, ARGV[6], ARGV[7]}
  redis.call('HSET', held, id, table.concat(record, ':'))
end

local function answer(found, status, index, name, used, wait)
  local reply = {id, status, index, name, used, wait, scope_of('').generation}
  for _, scope in ipairs(found) do
    local reset = 0
    if scope.has_window then
      reset = scope.last == now and WINDOW_MS or wait_for_rank(scope, -1, 0)
    end
    reply[#reply + 1] = scope.num_requests or 0
    reply[#reply + 1] = scope.tokens or 0
    reply[#reply + 1] = reset
  end
  write_all()
  return reply
end

local found = scopes_of(key)
local generation = found[1].generation or ARGV[9]
for i, scope in ipairs(found) do
  if scope.generation ~= generation then found[i] = begin(scope, generation) end
  set_limits(found[i], ARGV[9 + i])
end
sweep()
for _, scope in ipairs(found) do
  if scope.has_window then trim(scope) end
end
if redis.call('HEXISTS', held, id) == 1 then return answer(found, 'ok', 0, '', 0, 0) end
local missing = uncounted(found)
if #missing > 0 then return answer(found, 'uncounted', 0, table.concat(missing, ' '), 0, 0) end
for _, scope in ipairs(found) do check(scope) end
if worst then
  local index = worst.scope == found[1] and 0 or 1
  return answer(found, worst.status, index, worst.name, worst.used, worst.wait)
end
admit(found)
return answer(found, 'ok', 0, '', 0, 0)
