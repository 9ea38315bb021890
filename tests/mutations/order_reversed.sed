# FILE: include/otimes/plan/ordering.hpp
# ROOM: plan
# The closed form of the cheapest order, reversed.
/return static_cast<wide>/s/ > / < /
