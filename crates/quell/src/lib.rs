//! Rate limiting that keeps its promise: every classic algorithm, rules, and a bounded in-memory store.
