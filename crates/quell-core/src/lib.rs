//! The pure core of the Quell rate limiter: limits, states, rules and verdicts, without clock or I/O.
