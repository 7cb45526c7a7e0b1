//! Bytes to Quell's core types and back: RESP, HTTP rate limit fields and problem documents. No sockets.
