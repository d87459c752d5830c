-- Those requests still run. ARGV: hold ms, ids between spaces.
for one in string.gmatch(ARGV[7], '%S+') do
  redis.call('ZADD', holds, 'XX', now + ARGV[6], one)
end
return {id, 1}
