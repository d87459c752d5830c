-- What a tenant and its keys have used, and what is held for running requests. The head of every
-- verb's script, which runs alone: atomic. Two scopes count every request: the tenant, named "", and
-- the key that asked, named by the first of those it was rotated from.
--
--   sums     hash  a scope's counters: "tokens" of the last 60 s, "last" admission, ms; of running
--                  requests "running", "held_tokens", "held_nanos"; "<period>:tokens" and
--                  "<period>:nanos" spent in a day or month, there once they were counted from the
--                  ledger; "generation" names this store's life
--   window   zset  a scope's "<id>:<tokens>" -> admission, ms    requests of the last 60 s
--   holds    zset  request id -> expiry, ms                      running requests
--   held     hash  request id -> "<key>:<day>:<month>:<tokens>:<nanos>" of the same requests
--   expired  hash  the same of holds that ran out before they were settled
--   recent   zset  "<id>:<key>:<day>:<month>:<tokens>:<nanos>" -> ms    settled lately, perhaps not yet
--                  in the ledger
--   booked   set   "<key>:<period>:<id>": in that counter already, whatever comes later
--
-- sums and window of a key have ":<key>" behind their names. All names carry the tenant in braces, so
-- that they live on one node of a cluster. Whole numbers are exact up to 2^53.
--
-- ARGV of every verb: request id (or a name to answer with), now in ms ('' is the store's clock, tests
-- of window borders give another), key ('' is none), day, month; then its own.
local SUMS, WINDOW, holds, held = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local expired, recent, booked = KEYS[5], KEYS[6], KEYS[7]
local id, now, key, day, month = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local WINDOW_MS, RECENT_MS, DAY_MS = 60000, 60000, 86400000
local RECORD = '^([^:]*):([^:]*):([^:]*):([^:]*):([^:]*)$'
local COUNTERS = {
  'tokens', 'last', 'running', 'held_tokens', 'held_nanos',
  'day_tokens', 'day_nanos', 'month_tokens', 'month_nanos',
}

-- Read at once, changed here, written at once, however many change.
local scopes, names = {}, nil

local function scope_of(whose)
  local scope = scopes[whose]
  if scope then return scope end
  names = names or {
    'tokens', 'last', 'running', 'held_tokens', 'held_nanos',
    day .. ':tokens', day .. ':nanos', month .. ':tokens', month .. ':nanos', 'generation',
  }
  scope = {key = whose, sums = SUMS, window = WINDOW}
  if whose ~= '' then scope.sums, scope.window = SUMS .. ':' .. whose, WINDOW .. ':' .. whose end
  scope.read = redis.call('HMGET', scope.sums, unpack(names))
  for i = 1, 9 do
    scope.read[i] = tonumber(scope.read[i])
    scope[COUNTERS[i]] = scope.read[i]
  end
  scope.generation = scope.read[10]
  scopes[whose] = scope
  return scope
end

local function write_all()
  for _, scope in pairs(scopes) do
    local changed = {}
    for i = 1, 9 do
      local value = scope[COUNTERS[i]]
      if value and value ~= scope.read[i] then
        changed[#changed + 1] = names[i]
        changed[#changed + 1] = value
      end
    end
    if #changed > 0 then redis.call('HSET', scope.sums, unpack(changed)) end
  end
end

-- A counter that was lost begins again at nothing: it never falls below.
local function add(scope, counter, number)
  scope[counter] = math.max(0, (scope[counter] or 0) + number)
end

-- The scopes of a request: the tenant's and, if there is one, the key's.
local function scopes_of(whose)
  if whose == '' then return {scope_of('')} end
  return {scope_of(''), scope_of(whose)}
end

-- Those of them that are of this life of the store.
local function living(whose)
  local found, generation = {}, scope_of('').generation
  for _, scope in ipairs(scopes_of(whose)) do
    if generation and scope.generation == generation then found[#found + 1] = scope end
  end
  return found
end

local function free(found, num_tokens, nanos)
  for _, scope in ipairs(found) do
    add(scope, 'running', -1)
    add(scope, 'held_tokens', -num_tokens)
    add(scope, 'held_nanos', -nanos)
  end
end
