-- Ends a request. ARGV: generation, tokens, nano-units ('' is unknown: ask the ledger again), "1" if there
-- is a budget, "1" if the request itself is given back. Answers {id, 0} if it was settled before, else
-- {id, 1} and of each scope the month's tokens and nano-units, '' where they are not counted.
local generation, num_tokens, nanos = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local has_budget, is_refund = ARGV[9] == '1', ARGV[10] == '1'

local record = redis.call('HGET', held, id)
local is_held = record
record = record or redis.call('HGET', expired, id)
local bound, bound_nanos
if record then key, day, month, bound, bound_nanos = string.match(record, RECORD) end
local is_emptied = scope_of('').generation ~= generation
if not record and not is_emptied then return {id, 0} end
local found = living(key)

if is_held then
  redis.call('ZREM', holds, id)
  redis.call('HDEL', held, id)
  free(found, tonumber(bound), tonumber(bound_nanos))
elseif record then
  redis.call('HDEL', expired, id)
end

-- In its window, the bound becomes what was used; a request that never ran leaves it.
local function correct_window(scope)
  local member = id .. ':' .. bound
  local at = scope.last and redis.call('ZSCORE', scope.window, member)
  if not at then return end
  redis.call('ZREM', scope.window, member)
  if not is_refund then redis.call('ZADD', scope.window, at, id .. ':' .. ARGV[7]) end
  add(scope, 'tokens', num_tokens - tonumber(bound))
end

if record and (is_refund or ARGV[7] ~= bound) then
  for _, scope in ipairs(found) do correct_window(scope) end
end

local function book(scope, period, is_booked)
  local tokens, money = period .. '_tokens', period .. '_nanos'
  if scope[tokens] and not is_booked then
    add(scope, tokens, num_tokens)
    add(scope, money, nanos)
  end
end

-- False if all of it was booked before.
local function book_all()
  local asked = {id}
  for _, scope in ipairs(found) do
    asked[#asked + 1] = scope.key .. ':' .. day .. ':' .. id
    asked[#asked + 1] = scope.key .. ':' .. month .. ':' .. id
  end
  local is_booked = redis.call('SMISMEMBER', booked, unpack(asked))
  if is_booked[1] == 1 then return false end
  for i, scope in ipairs(found) do
    book(scope, 'day', is_booked[2 * i] == 1)
    book(scope, 'month', is_booked[2 * i + 1] == 1)
  end
  return true
end

local function forget(scope)
  redis.call('HDEL', scope.sums, unpack(names, 6, 9))
  for i = 6, 9 do scope[COUNTERS[i]] = nil end
end

if not nanos then
  for _, scope in ipairs(found) do forget(scope) end
elseif not is_refund and book_all() and has_budget then
  redis.call('ZADD', recent, now, table.concat({id, key, day, month, ARGV[7], ARGV[8]}, ':'))
  redis.call('ZREMRANGEBYSCORE', recent, '-inf', now - RECENT_MS)
  redis.call('PEXPIRE', recent, DAY_MS)
end
if is_emptied then
  redis.call('SADD', booked, id)
  redis.call('PEXPIRE', booked, DAY_MS)
end

local reply = {id, 1}
for _, scope in ipairs(found) do
  reply[#reply + 1] = scope.month_tokens or ''
  reply[#reply + 1] = scope.month_nanos or ''
end
write_all()
return reply
