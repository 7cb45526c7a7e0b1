//! RESP: one task per connection; commands that arrive together are answered together.

use std::sync::Arc;

use crate::listen::ListenSettings;
use crate::metrics::Refused;

mod access;
mod buffer;
mod calls;
mod connection;
mod overrides;
mod session;

pub(crate) use connection::run;

/// The answer to a connection for which there is no place; beyond `max_connections` that of Redis.
pub(crate) fn rejection(config: &ListenSettings, refused: Refused) -> Arc<[u8]> {
    let own = config.max_connections_per_address;
    let text = match refused {
        Refused::Address => format!(
            "-ERR max number of clients of your address reached: {own} (max_connections_per_address)\r\n"
        ),
        _ => "-ERR max number of clients reached\r\n".to_owned(),
    };
    Arc::from(text.into_bytes())
}

/// The answer to a client that does not speak TLS where the listener does.
pub(crate) fn no_tls() -> Arc<[u8]> {
    Arc::from(*b"-ERR this port speaks TLS: write rediss://, or --tls\r\n")
}
