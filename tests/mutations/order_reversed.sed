# FILE: include/otimes/plan/ordering.hpp
# ROOM: plan
# The closed form of the cheapest order, reversed.
s/(b.P \* b.Q) > static_cast/(b.P * b.Q) < static_cast/
