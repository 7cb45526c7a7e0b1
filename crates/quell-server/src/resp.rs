//! RESP: one task per connection, whatever it sends at once is answered at once.

mod buffer;
mod calls;
mod connection;
mod session;

pub(crate) use connection::run;

/// What a connection is told that comes when there are as many as may be; as Redis says it.
pub(crate) const SORRY: &[u8] = b"-ERR max number of clients reached\r\n";
