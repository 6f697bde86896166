"""The explorer: one HTML file in which the recurrence runs, with sliders for everything that decides it."""

from lipschitz_rnn.explorer.opening import open_networks as open_networks
from lipschitz_rnn.explorer.page import build_page as build_page
