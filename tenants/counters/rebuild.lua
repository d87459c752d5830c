-- Counts the key's, without one the tenant's, day or month from the ledger. ARGV: one of the two, tokens
-- and nano-units there, ids between spaces: rows of it that closed lately.
local period = ARGV[6]
local kind = period == day and 'day' or 'month'
local tokens, money = kind .. '_tokens', kind .. '_nanos'
local scope = scope_of(key)
if not scope.generation or scope[tokens] then return {id, 0} end

local in_ledger = {}
for one in string.gmatch(ARGV[9], '%S+') do
  in_ledger[one] = true
  redis.call('SADD', booked, key .. ':' .. period .. ':' .. one)
end
redis.call('PEXPIRE', booked, DAY_MS)

-- Of days one is counted at a time, and of months.
for _, field in ipairs(redis.call('HKEYS', scope.sums)) do
  local other = string.match(field, '^(.*):')
  if other and #other == #period then redis.call('HDEL', scope.sums, field) end
end
scope[tokens], scope[money] = tonumber(ARGV[7]), tonumber(ARGV[8])

redis.call('ZREMRANGEBYSCORE', recent, '-inf', now - RECENT_MS)
for _, entry in ipairs(redis.call('ZRANGE', recent, 0, -1)) do
  local one, whose, of_day, of_month, more_tokens, more_nanos =
    string.match(entry, '^(.*):([^:]*):([^:]*):([^:]*):([^:]*):([^:]*)$')
  local is_of_period = of_day == period or of_month == period
  if is_of_period and (key == '' or key == whose) and not in_ledger[one] then
    add(scope, tokens, tonumber(more_tokens))
    add(scope, money, tonumber(more_nanos))
  end
end
write_all()
return {id, 1}
