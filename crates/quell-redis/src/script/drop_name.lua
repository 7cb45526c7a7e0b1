-- Takes a key off the list of banned ones. ARGV: the member.
forget_odd()
remove(ARGV[1])
return 1
