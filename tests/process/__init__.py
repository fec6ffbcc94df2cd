"""Real processes under real faults: kills, stops, timeouts, lost connections, wrong clocks."""
