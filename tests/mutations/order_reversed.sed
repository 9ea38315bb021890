# FILE: include/otimes/plan/ordering.hpp
# ROOM: plan
# The closed form of the cheapest order, reversed.
/return gain_of_a/s/ > / < /
