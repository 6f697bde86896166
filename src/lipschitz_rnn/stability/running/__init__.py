"""Rounding of the running network: bounds on the distance between computed and exact states."""

from lipschitz_rnn.stability.running.api import rounding_bound as rounding_bound
from lipschitz_rnn.stability.running.bound import RoundingBound as RoundingBound
