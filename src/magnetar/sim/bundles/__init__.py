"""The simulator of bundles: several brokers with the ownership and the load manager of a cluster, in a broken world.

One seed:  options.py draws a small world → cluster.py starts brokers as `magnetar broker` does, with their HTTP ports →
           clients look topics up and follow redirects, an operator sends requests (operator.py), workload.py moves
           bundles, nemesis.py ends sessions → everything heals; the load manager comes to rest, topics are audited.
Owner:     brokers agree by themselves, through the metadata. The world of topics (../topics/) has an operator instead.
Watching:  watch.py knows each bundle's owner at every moment, as the metadata has it; invariants.py compares with what
           brokers believe and do.
Read next: scenario.py, magnetar/broker/cluster/ownership.py, docs/simulation.md
"""
