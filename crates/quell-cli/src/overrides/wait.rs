//! Wait: until all servers have a change.

use quell_protocol::http::OverrideServersBody;
use quell_protocol::printable;
use quell_rules::parse_duration;

use crate::output;

/// Reads a duration, for the server.
pub(super) fn wait(text: &str) -> Result<String, String> {
    parse_duration(text).map(|_| text.to_owned())
}

/// Words for the servers that have a change: `, on 2 of 3 servers`; nothing if the store does not say.
pub(super) fn servers_words(servers: Option<&OverrideServersBody>) -> String {
    servers.map_or_else(String::new, |OverrideServersBody { have, of, .. }| {
        let noun = if *of == 1 { "server" } else { "servers" };
        format!(", on {have} of {of} {noun}")
    })
}

/// Tells which servers lack a change that was waited for.
pub(super) fn note_missing(servers: Option<&OverrideServersBody>) {
    let Some(servers) = servers.filter(|servers| servers.have < servers.of) else {
        return;
    };
    let missing: Vec<_> = servers.missing.iter().map(|name| printable(name)).collect();
    let OverrideServersBody { have, of, .. } = servers;
    output::note(format_args!(
        "{have} of {of} servers have it; not yet: {}",
        missing.join(", ")
    ));
}
