//! RESP: one task per connection; commands that arrive together are answered together.

mod access;
mod buffer;
mod calls;
mod connection;
mod session;

pub(crate) use connection::run;

/// The answer to a connection beyond `max_connections`, as in Redis.
pub(crate) const SORRY: &[u8] = b"-ERR max number of clients reached\r\n";
