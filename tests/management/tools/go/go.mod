module leveret/rabbithole

go 1.20

require github.com/michaelklishin/rabbit-hole/v2 v2.16.0
